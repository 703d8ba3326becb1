"""Snakemake knows how many GPUs there are without being told, and believes who tells it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pdfs import text_pdf
from project import ROOT, clean_env


def limit(folder: Path, *arguments: str, **config: str) -> str:
    """Return the limit of the resource gpu after the rules' common part has been read."""
    text_pdf(folder / "c" / "a.pdf", "A")
    common = ROOT / "workflow" / "rules" / "common.smk"
    (folder / "Snakefile").write_text(
        f'include: "{common}"\nprint("LIMIT", workflow.global_resources.get("gpu").value)\n'
    )
    command = [sys.executable, "-m", "snakemake", *arguments, "--config", "corpus=c"]
    command += [f"{key}={value}" for key, value in config.items()]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=clean_env())
    return next((line.split()[1] for line in ended.stdout.splitlines() if line.startswith("LIMIT")), ended.stderr)


@pytest.mark.parametrize(
    ("arguments", "config", "expected"),
    [
        (["--cores", "8"], {"engine": "vllm", "gpus": "0,2,3"}, "3"),
        (["--cores", "8"], {"engine": "vllm", "arch": "cpu"}, "1"),
        (["--cores", "8", "--resources", "gpu=2"], {"engine": "vllm", "gpus": "0,2,3"}, "2"),
        (["--cores", "8"], {}, "None"),
    ],
)
def test_the_limit_is_that_of_the_cards_unless_it_is_given(
    tmp_path: Path, arguments: list[str], config: dict[str, str], expected: str
) -> None:
    assert limit(tmp_path, *arguments, **config) == expected
