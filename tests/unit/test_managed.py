"""The managed environment, built by a stand-in for uv, and (slow) by uv itself from indexes made up for the test."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdfquarry import environment, gpus, managed, uv
from pdfquarry.errors import ConfigurationError, EnvironmentFault
from pdfquarry.gpus import Gpu
from pdfquarry.settings import Settings, load
from wheels import served, wheel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="vLLM's ROCm wheels are for Linux")

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
PINS = managed.pins(managed.STACKS["rocm"])
XTX = Gpu(0, "gfx1100", "Radeon RX 7900 XTX", 24560, None, "rocminfo")


class Uv:
    """The stand-in for uv, and the environments that it builds."""

    def __init__(self, folder: Path) -> None:
        self.control = folder / "control"
        self.control.mkdir()
        self.say("headers.json", {"python": "3.12.9", "headers": True})
        self.prove()
        program = folder / "bin" / "uv"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{PYTHON}" "{ROOT / "tests/helpers/fake_uv.py"}" "$@"\n')
        program.chmod(0o755)

    def say(self, name: str, value: Any) -> None:
        (self.control / name).write_text(value if isinstance(value, str) else json.dumps(value))

    def prove(self, **changed: Any) -> None:
        """Set what the environment's Python says of itself."""
        self.say("proof.json", {"versions": PINS, "plugins": ["pdfquarry"], "hip": "7.2.53211"} | changed)

    def calls(self) -> list[list[str]]:
        path = self.control / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def steps(self) -> list[str]:
        return [" ".join(call[: 1 if call[0] == "venv" else 2]) for call in self.calls()]


BUILT = ["venv", "pip install", "pip check"]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Uv:
    fake = Uv(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(managed, "glibc", lambda: "glibc 2.35")
    monkeypatch.setattr(managed, "NEEDED_GB", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_UV", str(fake.control))
    return fake


def unfinished() -> bool:
    """Whether no environment is taken for finished."""
    return not list(managed.home().glob("*/complete"))


def test_an_environment_is_built_once_and_used_again(fake: Uv) -> None:
    python = managed.build()
    assert python.exists() and (python.parents[1] / "complete").exists() and fake.steps() == BUILT
    assert managed.build() == python and fake.steps() == BUILT


def test_changed_pins_and_a_changed_package_build_another(
    fake: Uv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = tmp_path / "envs"
    shutil.copytree(managed.STACKS["rocm"].parent, envs)
    monkeypatch.setitem(managed.STACKS, "rocm", envs / "rocm-current.txt")
    first = managed.build()
    with open(envs / "rocm-current-constraints.txt", "a") as constraints:
        constraints.write("# changed\n")
    second = managed.build()
    root = tmp_path / "root"
    for name in managed._SOURCES:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, _parent(root / name))
    monkeypatch.setattr(managed, "ROOT", root)
    assert managed.build() == second
    (root / "kernels/pdfquarry_kernels/new.py").touch()
    third = managed.build()
    assert len({first, second, third}) == 3 and fake.steps() == BUILT * 3


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_a_build_that_is_killed_takes_uv_along_and_is_begun_again(fake: Uv) -> None:
    (fake.control / "hang").touch()
    builder = _builder()
    assert _comes(lambda: (fake.control / "hanging").exists() or builder.poll() is not None)
    child = int((fake.control / "hanging").read_text())
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    assert _comes(lambda: not _alive(child)), "uv outlived the build"
    half = list(managed.home().glob("*/bin/half"))
    assert len(half) == 1 and unfinished()

    (fake.control / "hang").unlink()
    python = managed.build()
    assert python.parent == half[0].parent and not half[0].exists() and not unfinished()
    assert fake.steps() == ["venv", "pip install", *BUILT]


def test_two_runs_at_once_build_one_environment(fake: Uv) -> None:
    builders = [_builder() for _ in range(2)]
    assert [builder.wait(60) for builder in builders] == [0, 0]
    assert fake.steps() == BUILT and not unfinished()


def _builder() -> subprocess.Popen[bytes]:
    """Start a process that builds."""
    code = f"""
        import sys
        sys.path[:0] = [{str(ROOT / "workflow")!r}]
        from pdfquarry import managed
        sys.executable, managed.NEEDED_GB = {sys.executable!r}, 0
        managed.glibc = lambda: "glibc 2.35"
        managed.build()
    """
    return subprocess.Popen([PYTHON, "-c", textwrap.dedent(code)], stdout=subprocess.DEVNULL)


def _comes(condition: Any, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(condition())


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_finished_environment_whose_python_is_gone_is_built_again(fake: Uv) -> None:
    python = managed.build()
    python.unlink()
    assert managed.build() == python and python.exists() and fake.steps() == BUILT * 2


def test_without_uv_the_line_says_how_to_get_it(fake: Uv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin" / "uv").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"needs uv: .*/bin/python -m pip install uv$"):
        managed.build()


def test_a_full_disk_is_told_before_anything_is_fetched(fake: Uv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managed, "NEEDED_GB", 10**6)
    with pytest.raises(
        EnvironmentFault, match=r"GB are free, and environment.create needs about 1000000 GB: .*XDG_CACHE"
    ):
        managed.build()
    assert fake.calls() == [] and unfinished()


@pytest.mark.parametrize(("libc", "told"), [("glibc 2.31", "has glibc 2.31"), ("", "has another libc")])
def test_an_old_system_is_told_before_anything_is_fetched(
    fake: Uv, monkeypatch: pytest.MonkeyPatch, libc: str, told: str
) -> None:
    monkeypatch.setattr(managed, "glibc", lambda: libc)
    with pytest.raises(EnvironmentFault, match=rf"need glibc >= 2.35.*{told}: .*set environment.python$"):
        managed.build()
    assert fake.calls() == []


@pytest.mark.parametrize(
    ("python", "headers", "told"),
    [
        ("3.13.1", True, "uv took 3.13.1: uv python install 3.12"),
        ("3.12.3", False, "no Python.h.*install python3.12-dev"),
    ],
)
def test_another_python_is_refused_before_anything_is_fetched(fake: Uv, python: str, headers: bool, told: str) -> None:
    fake.say("headers.json", {"python": python, "headers": headers})
    with pytest.raises(EnvironmentFault, match=told):
        managed.build()
    assert fake.steps() == ["venv"] and unfinished()


# What uv 0.13.9 said.
UNREACHABLE = """\
Using Python 3.12.1 environment at: t1
error: Request failed after 3 retries in 6.2s
  cause: Failed to fetch: https://wheels.vllm.ai/rocm/0.28.0/rocm723/vllm/
  cause: client error (Connect)
  cause: dns error
"""
UNSOLVABLE = """\
error: No solution found when resolving dependencies
  cause: Because there is no version of vllm==0.28.0+rocm723 and you require vllm==0.28.0+rocm723, we can conclude that
         your requirements are unsatisfiable.
"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (UNREACHABLE, r"Failed to fetch: https://wheels.vllm.ai/\S+ .*: check the network and HTTPS_PROXY"),
        (UNSOLVABLE, r"no version of vllm==0.28.0\+rocm723 .*: an index lacks what is pinned"),
        ("error: failed to write\n  cause: No space left on device (os error 28)", "free disk space"),
        ("error: No interpreter found for Python 3.12 in search path", "put a Python 3.12 on PATH, or"),
        ("", "uv pip install ended with 2: no word: see uv's words above"),
    ],
)
def test_what_uv_complains_of_is_one_line_with_the_remedy(fake: Uv, said: str, told: str) -> None:
    fake.say("fail", said)
    with pytest.raises(EnvironmentFault, match=told) as caught:
        managed.build()
    assert "\n" not in str(caught.value) and unfinished()
    (fake.control / "fail").unlink()
    managed.build()
    assert not unfinished()


@pytest.mark.parametrize(
    ("proof", "told"),
    [
        ({"versions": PINS | {"torch": "2.13.0"}}, "torch 2.13.0 is there in place of 2.12.0"),
        (
            {"versions": {name: version for name, version in PINS.items() if name != "triton"}},
            "triton nothing is there",
        ),
        ({"hip": None}, "no build for ROCm"),
        (
            {"error": "OSError: libmpi_cxx.so.40: cannot open"},
            r"libmpi_cxx.so.40.*needs ROCm 7.2 in /opt/rocm and OpenMPI",
        ),
        ({"plugins": []}, "would not find pdf-quarry's plugin"),
    ],
)
def test_an_environment_that_is_not_what_was_asked_for_is_never_finished(
    fake: Uv, proof: dict[str, Any], told: str
) -> None:
    fake.prove(**proof)
    with pytest.raises(EnvironmentFault, match=told):
        managed.build()
    assert unfinished()


def test_uv_is_kept_from_taking_another_torch(fake: Uv, monkeypatch: pytest.MonkeyPatch) -> None:
    managed.build()
    install = next(call for call in fake.calls() if call[:2] == ["pip", "install"])
    assert install[install.index("--index-strategy") + 1] == "first-index"
    assert install[install.index("--requirement") + 1] == str(managed.STACKS["rocm"])
    # A local version (+...) is on no other index, and an exact pin lets no dependency have another.
    assert all("+" in PINS[name] for name in ("vllm", "torch", "triton", "torchvision", "torchaudio"))
    constraints = managed.pins(managed.STACKS["rocm"].with_name("rocm-current-constraints.txt"))
    assert not set(PINS) & set(constraints) and not [
        name for name in constraints if name.startswith(("nvidia", "cuda"))
    ]

    monkeypatch.setenv("UV_TORCH_BACKEND", "cu130")
    monkeypatch.setenv("UV_OVERRIDE", "mine.txt")
    program = fake.control / "program"
    program.write_text('#!/bin/sh\necho "error: ${UV_TORCH_BACKEND-none} ${UV_OVERRIDE-none}"; exit 1\n')
    program.chmod(0o755)
    with pytest.raises(EnvironmentFault, match="error: none none"):
        uv.run(program)


def test_create_and_python_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match=r"^environment: python names one and create builds one") as caught:
        load({"environment": {"create": "rocm", "python": "/opt/venv/bin/python"}})
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"environment\.create: .*rocm"):
        load({"environment": {"create": "cuda"}})


@pytest.mark.parametrize(
    ("arch", "found", "told"),
    [
        ("cpu", [XTX], "arch: cpu looks at none"),
        ("auto", [], "this machine has none that any tool names"),
        ("auto", [replace(XTX, arch="sm_90")], "has nothing for sm_90, only for gfx90a"),
        ("auto", [replace(XTX, arch="gfx1036")], "has nothing for gfx1036"),
        ("gfx1201", [XTX], "arch: gfx1201 was asked for, and this machine has gfx1100"),
    ],
)
def test_without_a_fitting_amd_gpu_nothing_is_built(
    fake: Uv, monkeypatch: pytest.MonkeyPatch, arch: str, found: list[Gpu], told: str
) -> None:
    monkeypatch.setattr(gpus, "find", lambda *_: found)
    with pytest.raises(EnvironmentFault, match=told) as caught:
        environment.gpu_python(_settings(arch))
    assert "\n" not in str(caught.value) and fake.calls() == []


def test_work_on_an_amd_gpu_gets_the_python_that_was_built(fake: Uv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "find", lambda *_: [XTX])
    assert environment.gpu_python(_settings("auto")) == str(managed.build())
    assert fake.steps() == BUILT


def _settings(arch: str) -> Settings:
    return load({"arch": arch, "environment": {"create": "rocm"}})


def test_the_documentation_names_what_is_pinned() -> None:
    text = (ROOT / "docs/environment.md").read_text()
    for name in ("vllm", "torch", "triton", "mineru-vl-utils", "transformers"):
        assert PINS[name] in text, name
    assert ", ".join(managed.ARCHES) in text and f"{managed.NEEDED_GB} GB" in text
    assert f"glibc >= {'.'.join(map(str, managed.GLIBC))}" in text


# From here on with uv itself. The ordinary index has a CUDA vLLM, a newer torch, and what would like to have that.


@pytest.fixture
def indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of two indexes, rocm and ordinary, and a stack whose requirements name them."""
    folder = tmp_path / "indexes"
    rocm, ordinary = folder / "rocm", folder / "ordinary"
    _rocm_wheels(rocm, ["helper"])
    wheel(ordinary, "vllm", "0.28.0", ["torch==2.99.0"])
    wheel(ordinary, "torch", "2.99.0", files={"torch/__init__.py": "class version: hip = None\n"})
    wheel(ordinary, "triton", "9.9.0")
    wheel(ordinary, "mineru-vl-utils", PINS["mineru-vl-utils"], ["vllm>=0.19.1,<0.29"])
    wheel(ordinary, "transformers", PINS["transformers"])
    wheel(ordinary, "helper", "1.0", ["torch>=2.0", "triton"])
    root = tmp_path / "project"
    for name in ("workflow/pdfquarry", "workflow/pdfquarry/engine", "kernels/pdfquarry_kernels"):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").touch()
    (root / "README.md").touch()
    (root / "LICENSE").touch()
    text = (ROOT / "pyproject.toml").read_text()
    text = re.sub(r"^dependencies = \[.*?^\]", "dependencies = []", text, flags=re.M | re.S)
    (root / "pyproject.toml").write_text(text.replace('dynamic = ["version"]', 'version = "1"'))
    monkeypatch.setattr(managed, "ROOT", root)
    # The wheels are for any Python; what runs here will do.
    monkeypatch.setattr(managed, "PYTHON", f"{sys.version_info.major}.{sys.version_info.minor}")
    monkeypatch.setattr(managed, "NEEDED_GB", 0)
    monkeypatch.setattr(managed, "glibc", lambda: "glibc 2.35")
    monkeypatch.setenv("PATH", f"{Path(PYTHON).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with served(folder) as address:
        text = managed.STACKS["rocm"].read_text()
        text, found = re.subn(r"--extra-index-url \S+", f"--extra-index-url {address}/rocm", text)
        assert found == 1
        stack = tmp_path / "rocm-current.txt"
        stack.write_text(text + f"--extra-index-url {address}/ordinary\n")
        constraints = "rocm-current-constraints.txt"
        shutil.copy(managed.STACKS["rocm"].with_name(constraints), tmp_path / constraints)
        monkeypatch.setitem(managed.STACKS, "rocm", stack)
        yield folder


def _rocm_wheels(index: Path, more: list[str]) -> None:
    """What vLLM's ROCm index has: its wheel pins the others exactly, and asks the ordinary index for ``more``."""
    others = [f"{name}=={PINS[name]}" for name in ("torch", "triton", "torchvision", "torchaudio")]
    wheel(index, "vllm", PINS["vllm"], [*others, *more])
    wheel(index, "torch", PINS["torch"], files={"torch/__init__.py": "class version: hip = '7.2.53211'\n"})
    wheel(index, "triton", PINS["triton"])
    for name in ("torchvision", "torchaudio"):
        wheel(index, name, PINS[name], ["torch"])


@pytest.mark.slow
def test_uv_takes_torch_triton_and_vllm_from_the_rocm_index(indexes: Path) -> None:
    python = managed.build()
    complete = json.loads((python.parents[1] / "complete").read_bytes())
    installed = {name.lower(): version for name, version in complete["versions"].items()}
    assert PINS.items() <= installed.items() and installed["helper"] == "1.0" and complete["hip"] == "7.2.53211"
    assert "pdfquarry" in complete["plugins"]
    report = environment.inspect(str(python))
    assert report["executable"] == str(python) and report["packages"]["torch"]["version"] == PINS["torch"]


@pytest.mark.slow
def test_a_dependency_that_wants_another_torch_is_an_error_and_replaces_nothing(indexes: Path) -> None:
    wheel(indexes / "ordinary", "helper", "1.0", ["torch>=2.90"])
    with pytest.raises(EnvironmentFault, match=r"torch>=2\.90.*: an index lacks what is pinned"):
        managed.build()
    assert unfinished()


@pytest.mark.slow
def test_a_rocm_index_without_the_wheel_never_gives_the_cuda_one(indexes: Path) -> None:
    shutil.rmtree(indexes / "rocm" / "vllm")
    with pytest.raises(EnvironmentFault, match=r"no version of vllm==0\.28\.0\+rocm723"):
        managed.build()
    assert unfinished()


@pytest.mark.slow
def test_the_pins_resolve_together_and_keep_torch(indexes: Path) -> None:
    """A dry resolve of the real pins and of pdf-quarry on the ordinary index; only ROCm's is made up."""
    stack = managed.STACKS["rocm"]
    constraints = managed.pins(stack.with_name("rocm-current-constraints.txt"))
    _rocm_wheels(indexes / "rocm", list(constraints))  # vLLM may ask for any of them
    shutil.rmtree(indexes / "ordinary")
    (indexes / "ordinary").mkdir()
    ended = subprocess.run(
        [
            *(uv.find(), "pip", "compile", stack, ROOT / "pyproject.toml", "--no-header", "--no-annotate"),
            *("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_35"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    resolved = dict(re.findall(r"^([\w.-]+)==(\S+)", ended.stdout, flags=re.M))
    assert PINS.items() <= resolved.items() and resolved == PINS | constraints
