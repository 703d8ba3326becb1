"""Runs the interpreter tests in a process of their own: Triton reads its switch on decoration."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import doclayout

HERE = Path(__file__).parent


def interpret(marker: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"} | environ
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marker]
    return subprocess.run(
        [*command, "--import-mode=importlib", str(HERE / "interpreter")],
        env=environment,
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
    )


def test_kernels_agree_with_float64_in_the_interpreter() -> None:
    result = interpret("not slow")
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout, result.stdout


@pytest.mark.slow
def test_the_real_network_keeps_its_boxes_in_the_interpreter(tmp_path: Path) -> None:
    result = interpret("slow", PYTHONPATH=doclayout.python_path(), YOLO_CONFIG_DIR=str(tmp_path))
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout and " skipped" not in result.stdout, result.stdout
