"""``python -m pdfquarry``: one line and an exit code for each mistake."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from pdfquarry import errors

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "workflow"), str(ROOT / "kernels")])
    command = [sys.executable, "-m", "pdfquarry", *arguments]
    env = os.environ | {"PYTHONPATH": path} | environment
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)


@pytest.mark.parametrize(
    "arguments", [[], ["no-such-step"], ["plan"], ["extract", "--results", "r"], ["plan", "--shrd"]]
)
def test_a_wrong_command_line_is_explained(arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2 and "usage: pdfquarry" in ended.stderr and "Traceback" not in ended.stderr


def test_a_step_without_a_run_says_what_is_missing(tmp_path: Path) -> None:
    ended = run("plan", "--results", str(tmp_path))
    assert ended.returncode == errors.ConfigurationError.code
    assert ended.stderr == f"pdfquarry plan: {tmp_path}/plan/settings.json: missing or damaged; snakemake writes it\n"


def test_patches_are_listed_with_the_reason() -> None:
    ended = run("patches")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == 4 and all(line.count(": ") >= 2 for line in lines)
    assert lines[0].startswith("vLLM: patch embedding without Conv3d: ")


def test_diffs_of_what_is_not_installed_are_refused_in_a_line(tmp_path: Path) -> None:
    ended = run("patches", "--write", str(tmp_path / "diffs"))
    assert ended.returncode == errors.EnvironmentFault.code and not (tmp_path / "diffs").exists()
    assert len(ended.stderr.splitlines()) == 1 and ended.stderr.startswith("pdfquarry patches: ")


def test_the_entry_point_that_vllm_loads_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (target,) = project["entry-points"]["vllm.general_plugins"].values()
    module, function = target.split(":")
    assert callable(getattr(import_module(module), function))


def test_every_exit_code_is_documented_and_none_is_used_twice() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.QuarryError)]
    codes = {kind.code for kind in kinds}
    assert len(codes) == len(kinds)
    reference = (ROOT / "docs/reference.md").read_text()
    assert all(f"| {code} |" in reference for code in codes)
