"""The managed environment: vLLM for ROCm in a virtual environment of its own, built once with uv from pinned wheels.

It lies in the user's cache, where many results folders share it, under a name with a digest of the pins and of
pdf-quarry: changed ones make another. A virtual environment can't be renamed, so it is built in its place, under a
lock, and the file ``complete``, written last, is what makes it one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from pdfquarry import files, uv
from pdfquarry.errors import EnvironmentFault

ROOT = Path(__file__).resolve().parents[2]
STACKS = {"rocm": ROOT / "workflow" / "envs" / "rocm-current.txt"}
PYTHON = "3.12"  # of the only wheels that vLLM has for ROCm
GLIBC = (2, 35)
# What they are compiled for: PYTORCH_ROCM_ARCH in docker/Dockerfile.rocm_base of vLLM 0.28.0.
ARCHES = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1150", "gfx1151", "gfx1200", "gfx1201")
# An estimate: others measured 12 GB with vLLM 0.29.0 (docs/environment.md); the rest is for what uv unpacks meanwhile.
NEEDED_GB = 20
# What makes up pdf-quarry; with the pins it gives the environment its name.
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "workflow/pdfquarry", "kernels/pdfquarry_kernels")
_HAS_HEADERS = """
import json, os, platform, sysconfig
headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
print(json.dumps({"python": platform.python_version(), "headers": headers}))
"""
_PROOF = """
import importlib.metadata as metadata, json
proof = {"versions": {one.metadata["Name"]: one.version for one in metadata.distributions() if one.metadata["Name"]}}
proof["plugins"] = [one.name for one in metadata.entry_points(group="vllm.general_plugins")]
try:
    import torch
    proof["hip"] = torch.version.hip
except Exception as error:
    proof["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(proof))
"""


def build(stack: str = "rocm") -> Path:
    """Return the Python of the stack's environment; build it when there is none that is complete.

    Raises EnvironmentFault, with the remedy in its line: this machine can't have it, uv can't be found or fails, or
    what was built is not what was asked for. Nothing is then taken for finished, and the next call begins anew.
    """
    requirements = STACKS[stack]
    folder = home() / f"{requirements.stem}-{digest(requirements)}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if complete.exists() and python.exists():
        return python
    program = uv.find()
    check_machine()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.with_name(f"{folder.name}.lock")):
            if complete.exists() and python.exists():
                return python  # another run has built it meanwhile
            check_disk(folder.parent)
            if folder.exists():
                print(f"{folder} is not finished: it is built anew", flush=True)
                shutil.rmtree(folder)
            _install(program, requirements, folder, python)
            files.write_json(complete, verify(python, requirements))
    except OSError as error:
        raise EnvironmentFault(f"{folder}: can't be written: {error.strerror or error}; see XDG_CACHE_HOME") from error
    return python


def home() -> Path:
    """Return the folder of all managed environments."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pdf-quarry" / "environments"


def digest(requirements: Path) -> str:
    """Return 12 hex digits for the pins, constraints included, and all files of pdf-quarry that get installed."""
    total = hashlib.sha256()
    for path in [*sorted(requirements.parent.glob(f"{requirements.stem}*.txt")), *_source_files()]:
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:12]


def _source_files() -> Iterator[Path]:
    if not (ROOT / "pyproject.toml").exists():
        raise EnvironmentFault("environment.create needs PDF Quarry's own folder: run snakemake with its Snakefile")
    for path in (ROOT / name for name in _SOURCES):
        yield from sorted(one for one in path.rglob("*") if one.suffix in (".py", ".json")) if path.is_dir() else [path]


def check_machine() -> None:
    """Raise EnvironmentFault where vLLM's ROCm wheels can't run: they are for Linux on x86-64 with glibc >= 2.35."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise EnvironmentFault(
            f"vLLM's ROCm wheels are for Linux on x86-64, and this is {sys.platform} on {platform.machine()}: "
            "set environment.python"
        )
    name, _, version = glibc().partition(" ")
    if name != "glibc" or tuple(map(int, version.split(".")[:2])) < GLIBC:
        raise EnvironmentFault(
            f"vLLM's ROCm wheels need glibc >= {GLIBC[0]}.{GLIBC[1]} (Ubuntu 22.04, Debian 12), and this system has "
            f"{glibc() or 'another libc'}: run in a ROCm container and set environment.python"
        )


def glibc() -> str:
    """Return "glibc 2.36", or an empty string for another libc."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def check_disk(folder: Path) -> None:
    """Raise EnvironmentFault when the folder's file system has too little room."""
    free = shutil.disk_usage(folder).free / 10**9
    if free < NEEDED_GB:
        raise EnvironmentFault(
            f"{folder}: {free:.0f} GB are free, and environment.create needs about {NEEDED_GB} GB: "
            "free some, or let XDG_CACHE_HOME name a folder on a larger disk"
        )


def _install(program: str, requirements: Path, folder: Path, python: Path) -> None:
    """Make the virtual environment and install the pins and pdf-quarry into it, in one resolution."""
    print(f"building {folder}: about 3 GB to fetch and 12 GB on the disk", flush=True)
    uv.run(program, "venv", "--no-project", "--python", PYTHON, folder)
    found = _ask(python, _HAS_HEADERS)
    if not found["python"].startswith(f"{PYTHON}."):
        raise EnvironmentFault(
            f"vLLM's ROCm wheels are for Python {PYTHON}, and uv took {found['python']}: uv python install {PYTHON}"
        )
    if not found["headers"]:
        raise EnvironmentFault(
            f"Python {PYTHON} has no Python.h here, and Triton compiles with it: uv python install {PYTHON}, "
            f"or install python{PYTHON}-dev"
        )
    # A copy, since setuptools leaves files where it builds, and takes up those that it left before.
    with tempfile.TemporaryDirectory() as scratch:
        for name in _SOURCES:
            source, target = ROOT / name, Path(scratch, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        # Each package comes from the first index that has it, and ROCm's is the first.
        strategy = ("--index-strategy", "first-index")
        uv.run(program, "pip", "install", "--python", python, *strategy, "--requirement", requirements, scratch)
    uv.run(program, "pip", "check", "--python", python)


def verify(python: Path, requirements: Path) -> dict[str, Any]:
    """Return what is installed. Raises EnvironmentFault when it is not what was pinned, or torch has no HIP."""
    proof: dict[str, Any] = _ask(python, _PROOF)
    installed = {_normal(name): version for name, version in proof["versions"].items()}
    for name, version in pins(requirements).items():
        if installed.get(name) != version:
            raise EnvironmentFault(
                f"{python}: {name} {installed.get(name, 'nothing')} is there in place of {version}, so something "
                "replaced it: look for an override in uv's configuration"
            )
    if "error" in proof:
        raise EnvironmentFault(
            f"{python}: torch does not import ({' '.join(proof['error'].split())[:200]}): its build needs ROCm 7.2 "
            "in /opt/rocm and OpenMPI 4 (libmpi.so.40) of the system"
        )
    if not proof["hip"]:
        raise EnvironmentFault(f"{python}: torch {installed['torch']} is no build for ROCm; look at the pins")
    if "pdfquarry" not in proof["plugins"]:
        raise EnvironmentFault(f"{python}: vLLM would not find pdf-quarry's plugin; please report it")
    return proof


def pins(requirements: Path) -> dict[str, str]:
    """Return name -> version of the lines ``name==version``."""
    found = re.findall(r"^([\w.-]+)==(\S+)", requirements.read_text(encoding="utf-8"), flags=re.M)
    return {_normal(name): version for name, version in found}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _ask(python: Path, code: str) -> Any:
    """Return the JSON that ``code`` prints, in isolation from PYTHONPATH and the user's packages."""
    try:
        ended = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=600)
        return json.loads(ended.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(f"{python} does not run ({type(error).__name__}): run again to build it anew") from error
