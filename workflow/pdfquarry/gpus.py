"""The GPUs of this machine, from whatever tool can name them, and the masks that hide or contradict them."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KFD = Path("/sys/class/kfd/kfd/topology/nodes")
# Architectures of GPUs that share a chip, and memory, with the CPU (LLVM's table of AMDGPU processors).
INTEGRATED = frozenset(
    """gfx902 gfx909 gfx90c gfx1013 gfx1033 gfx1035 gfx1036 gfx1037 gfx1103 gfx1150 gfx1151 gfx1152
    gfx1153""".split()  # noqa: SIM905  a list is read in one look
)
# A tool of a broken driver may hang.
_PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Args:
        index: its number for HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES, without masks.
        arch: gfx1100, or sm_90 for NVIDIA.
        name: the marketing name, which several architectures may share.
        memory_mb: its memory in MiB, 0 when the tool doesn't say.
        free_mb: what is free of it, None when the tool doesn't say.
        source: the tool that told.
    """

    index: int
    arch: str
    name: str
    memory_mb: int
    free_mb: int | None
    source: str

    @property
    def integrated(self) -> bool:
        """Whether it is part of the CPU."""
        return self.arch in INTEGRATED


def run_tool(command: list[str]) -> str | None:
    """Return what a tool prints, or None when it isn't there, fails, or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout if ended.returncode == 0 else None


def find(
    torch: Mapping[str, Any] | None = None, run: Callable[[list[str]], str | None] = run_tool, kfd: Path = KFD
) -> list[Gpu]:
    """Return the GPUs, by the first source that names any: torch, rocminfo, amd-smi, the kernel driver, nvidia-smi.

    Args:
        torch: what torch said in the interpreter of the GPU jobs (``inspect_python``), if it is there.
        run: runs a tool.
        kfd: the folder of AMD's kernel driver, which needs no tool.
    """
    sources: list[Callable[[], list[Gpu]]] = [
        lambda: from_torch(torch or {}),
        lambda: from_rocminfo(run(["rocminfo"]) or ""),
        lambda: from_amd_smi(run(["amd-smi", "static", "--asic", "--vram", "--json"]) or ""),
        lambda: from_kfd(kfd),
        lambda: from_nvidia_smi(run(["nvidia-smi", *_NVIDIA_QUERY]) or ""),
    ]
    for source in sources:
        found = source()
        if found:
            return found
    return []


def from_torch(report: Mapping[str, Any]) -> list[Gpu]:
    """Return the devices that torch sees. PyTorch for ROCm calls them cuda, too, and has their gcnArchName."""
    return [
        Gpu(index, device["arch"], device["name"], device["memory_mb"], device.get("free_mb"), "torch")
        for index, device in enumerate(report.get("devices", []))
    ]


def from_rocminfo(text: str) -> list[Gpu]:
    """Return the GPU agents of rocminfo. Pools give memory in KB; the largest is the card's own."""
    found: list[Gpu] = []
    for agent in re.split(r"^\*+\s*\nAgent \d+\s*\n\*+\s*$", text, flags=re.M)[1:]:
        fields = dict(re.findall(r"^  ([A-Z][\w .()]*?):[ \t]+(.*?)[ \t]*$", agent, flags=re.M))
        if fields.get("Device Type") == "GPU":
            pools = [int(size) for size in re.findall(r"^\s+Size:\s+(\d+)\(0x[0-9a-f]+\) KB", agent, flags=re.M)]
            memory = max(pools, default=0) // 1024
            found.append(Gpu(len(found), fields["Name"], fields.get("Marketing Name", ""), memory, None, "rocminfo"))
    return found


def from_amd_smi(text: str) -> list[Gpu]:
    """Return the GPUs of ``amd-smi static --asic --vram --json``: a list, or in newer versions a list in gpu_data."""
    try:
        report = json.loads(text)
    except ValueError:
        return []
    rows = report.get("gpu_data") if isinstance(report, dict) else report
    found = []
    for row in rows if isinstance(rows, list) else []:
        asic, vram = row.get("asic", {}), row.get("vram", {})
        arch = str(asic.get("target_graphics_version", ""))
        if not arch.startswith("gfx"):
            continue
        size = vram.get("size", 0)
        memory = int(size.get("value", 0) if isinstance(size, dict) else re.sub(r"\D", "", str(size)) or 0)
        found.append(Gpu(int(row["gpu"]), arch, str(asic.get("market_name", "")), memory, None, "amd-smi"))
    return found


def from_kfd(folder: Path) -> list[Gpu]:
    """Return the GPUs that AMD's kernel driver lists. gfx1100 is 110000: major, minor, step, two digits each."""
    found: list[Gpu] = []
    for properties in sorted(folder.glob("*/properties"), key=lambda path: int(path.parent.name)):
        try:
            fields = dict(line.split(" ", 1) for line in properties.read_text().splitlines() if " " in line)
            version = int(fields.get("gfx_target_version", 0))
        except (OSError, ValueError):
            continue
        if version:
            arch = f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}"
            found.append(Gpu(len(found), arch, "", _kfd_memory(properties.parent), None, "kernel driver"))
    return found


def _kfd_memory(node: Path) -> int:
    """Return the MiB of a node's own memory: banks of heap type 1 or 2 (visible or not to the CPU)."""
    total = 0
    for bank in node.glob("mem_banks/*/properties"):
        fields = dict(line.split(" ", 1) for line in bank.read_text().splitlines() if " " in line)
        if fields.get("heap_type") in ("1", "2"):
            total += int(fields.get("size_in_bytes", 0))
    return total // 2**20


_NVIDIA_QUERY = ["--query-gpu=index,name,memory.total,memory.free,compute_cap", "--format=csv,noheader,nounits"]


def from_nvidia_smi(text: str) -> list[Gpu]:
    """Return the GPUs of nvidia-smi's table of index, name, memory and free memory in MiB, and compute capability."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        try:
            index, name, memory, free, capability = row
            found.append(
                Gpu(int(index), "sm_" + capability.replace(".", ""), name, int(memory), int(free), "nvidia-smi")
            )
        except ValueError:
            continue
    return found


def usable(gpus: list[Gpu]) -> list[Gpu]:
    """Return the GPUs that work is for: cards, or what is part of the CPU when there is no card."""
    return [gpu for gpu in gpus if not gpu.integrated] or gpus


def mask_problems(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each contradiction among the variables that hide GPUs, with the remedy.

    vLLM on ROCm refuses to start when HIP's and CUDA's differ. ROCR's filters first and renumbers what is left, so that
    an index of HIP's may then lead nowhere, and the work falls on the CPU without a word.
    """
    hip, cuda, rocr = (environ.get(name) for name in MASKS)
    if hip is not None and cuda is not None and hip != cuda:
        yield f"HIP_VISIBLE_DEVICES={hip} and CUDA_VISIBLE_DEVICES={cuda} contradict: unset CUDA_VISIBLE_DEVICES"
    inner = hip if hip is not None else cuda
    if rocr is not None and inner is not None:
        left = len([part for part in rocr.split(",") if part.strip()])
        numbers = [int(part) for part in inner.split(",") if part.strip().isdigit()]
        name = "HIP_VISIBLE_DEVICES" if hip is not None else "CUDA_VISIBLE_DEVICES"
        lost = [number for number in numbers if number >= left]
        if lost:
            yield (
                f"ROCR_VISIBLE_DEVICES={rocr} leaves {left} GPUs, numbered from 0, and {name}={inner} asks for number "
                f"{lost[0]}: unset ROCR_VISIBLE_DEVICES"
            )


MASKS = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
