"""The environment: what is installed here, and the proof that the engine works, made once and kept."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pdfquarry import __version__, files, gpus, managed, proof
from pdfquarry.arch import job_variables, shown
from pdfquarry.arch import load as load_arch
from pdfquarry.engines import EngineJob, Machine
from pdfquarry.errors import EnvironmentFault
from pdfquarry.gpus import Gpu
from pdfquarry.results import Results
from pdfquarry.settings import Settings

PACKAGES = (
    "snakemake",
    "docvortex",
    "pypdfium2",
    "faster-paddle",
    "onnxruntime",
    "pebble",
    "pandas",
    "pyarrow",
    "pydantic",
)
# What work on GPUs needs, in the interpreter that is named for it.
GPU_PACKAGES = ("torch", "triton", "vllm", "mineru", "mineru-vl-utils", "doclayout-yolo", "pdf-quarry")
_PROOF = "Quarry stone 1234"


def versions() -> dict[str, str]:
    """Return the version of each package that a run uses; an absent one has an empty version."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def environment(results: Results, settings: Settings) -> str:
    """Look at the machine, prove engine and kernels, write environment.json and environment.md; return the arch.

    Raises EnvironmentFault: a package is missing, GPU masks contradict, the GPU that was asked for isn't there, the
    interpreter for GPUs doesn't run or can't be built, the engine can't read a page that it is given, or a kernel
    computes wrong.
    """
    missing = [name for name, found in versions().items() if not found]
    if missing:
        raise EnvironmentFault(f"not installed: {', '.join(missing)}; run: {sys.executable} -m pip install .")
    python = gpu_python(settings)
    report = inspect(python)
    found = gpus.find(report["torch"]) if settings.arch != "cpu" else []
    problems = list(gpus.mask_problems(os.environ)) if found else []
    if problems:
        raise EnvironmentFault("\n".join(problems))
    arch = choose_arch(settings.arch, found)
    prove(settings)
    variables = job_variables(arch, settings.environment.variables, os.environ)
    state = {
        "pdfquarry": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "free_disk_mb": shutil.disk_usage(results.root).free // 2**20,
        "arch": arch,
        "engine": settings.engine,
        "gpus": [asdict(gpu) for gpu in found],
        "masks": {name: os.environ[name] for name in gpus.MASKS if name in os.environ},
        "packages": versions(),
        "gpu_python": report,
        "variables": shown(variables),
        "engine_arguments": {name: one.value for name, one in load_arch(arch).engine.items()},
        "proof": proof.prove_kernels(python, arch, report["torch"], variables),
    }
    # What an engine lacks is said now, and not by the first of a thousand jobs.
    engines = {settings.engine, settings.detected} - {"embedded", "docvortex", "vlm"}
    for kind in sorted(engines):
        EngineJob(kind, settings, Machine.of(state), results.root / "logs" / "engine" / "none.log")
    files.write_json(results.root / "environment.json", state)
    files.write(results.root / "environment.md", readable(state, found))
    return arch


def gpu_python(settings: Settings) -> str:
    """Return the Python for work on GPUs; build it first where the settings say so.

    Raises EnvironmentFault, before anything is built, when there is no AMD GPU or not the one that was asked for.
    """
    create = settings.environment.create
    if not create:
        return settings.environment.python or sys.executable
    arch = choose_arch(settings.arch, gpus.find() if settings.arch != "cpu" else [])
    if arch == "cpu":
        seen = "arch: cpu looks at none" if settings.arch == "cpu" else "this machine has none that any tool names"
        raise EnvironmentFault(f"environment.create: {create} is for AMD GPUs, and {seen}; leave it empty")
    if arch not in managed.ARCHES:
        raise EnvironmentFault(
            f"environment.create: {create} has nothing for {arch}, only for {', '.join(managed.ARCHES)}; "
            "set environment.python"
        )
    return str(managed.build(create))


def inspect(python: str) -> dict[str, Any]:
    """Return what ``inspect_python`` says of an interpreter. Raises EnvironmentFault when that doesn't run."""
    script = Path(__file__).with_name("inspect_python.py")
    try:
        ended = subprocess.run([python, script, *GPU_PACKAGES], capture_output=True, text=True, timeout=300)
        report: dict[str, Any] = json.loads(ended.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(f"environment.python: {python} does not run ({type(error).__name__})") from error
    return report


def choose_arch(asked: str, found: list[Gpu]) -> str:
    """Return the architecture to work on: the one asked for, or that of the most memory, or cpu.

    Raises EnvironmentFault, naming both, when what is asked for is not what is there.
    """
    if asked == "cpu":
        return "cpu"
    there = sorted({gpu.arch for gpu in found})
    if asked == "auto":
        memory = {arch: sum(gpu.memory_mb for gpu in gpus.usable(found) if gpu.arch == arch) for arch in there}
        return max(memory, key=lambda arch: (memory[arch], arch), default="cpu")
    if asked not in there:
        has = f"has {', '.join(there)}" if there else "has no GPU that any tool names"
        raise EnvironmentFault(f"arch: {asked} was asked for, and this machine {has}; use arch=auto or arch=cpu")
    return asked


def readable(state: dict[str, Any], found: list[Gpu]) -> str:
    """Return the environment for a person, as Markdown."""
    lines = ["# Environment", "", "| | |", "| --- | --- |"]
    for key in ("pdfquarry", "python", "platform", "cores", "free_disk_mb", "arch", "engine"):
        lines.append(f"| {key} | {state[key]} |")
    lines += ["", "The embedded engine read its test page through the text layer and through the picture."]
    lines += ["", "## GPUs", ""]
    if found:
        lines += [
            "| index | arch | name | memory MiB | free MiB | told by | |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
    for gpu in found:
        note = "part of the CPU" if gpu.integrated else ""
        free = "" if gpu.free_mb is None else gpu.free_mb
        lines.append(f"| {gpu.index} | {gpu.arch} | {gpu.name} | {gpu.memory_mb} | {free} | {gpu.source} | {note} |")
    if len({gpu.arch for gpu in found}) > 1:
        lines.append("\nThe GPUs are of different kinds: vLLM since 0.16 takes the first for the kind of all.")
    if not found:
        lines.append("None was found, or none was looked for (`arch: cpu`).")
    known = state["variables"] | state["engine_arguments"]
    if known:
        lines += ["", "## Settings for work on GPUs", "", "| setting | value |", "| --- | --- |"]
        lines += [f"| {name} | {value} |" for name, value in known.items()]
    lines += ["", "## Kernels", "", *proof.readable(state["proof"])]
    lines += ["", "## Packages", "", "| package | version | location |", "| --- | --- | --- |"]
    lines += [f"| {name} | {found_version} | |" for name, found_version in state["packages"].items()]
    lines += [f"| {name} | {p['version']} | {p['location']} |" for name, p in state["gpu_python"]["packages"].items()]
    return "\n".join(lines) + "\n"


def prove(settings: Settings) -> None:
    """Read a page through its text layer and through its picture. Raises EnvironmentFault when either fails."""
    import pypdfium2

    from pdfquarry import embedded, ocr

    box = (20.0, 20.0, 260.0, 44.0)
    page = ocr.set_page([ocr.Line(_PROOF, box)], 280, 80)
    try:
        blocks = embedded.blocks_of(page)
        with pypdfium2.PdfDocument(page) as document:
            lines = ocr.read(document[0], settings.ocr_model, 1_000_000)
    except Exception as error:
        raise EnvironmentFault(f"the embedded engine does not run here: {type(error).__name__}: {error}") from error
    for name, text in (("docvortex", str(blocks)), ("faster-paddle", " ".join(line.text for line in lines))):
        if _PROOF not in text:
            raise EnvironmentFault(f"{name} misreads the test page ({text[:80]!r}); reinstall it")
