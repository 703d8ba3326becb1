"""Packages fetched with pip into a cache that tests share and CI keeps. Nothing fetched is committed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


def cache() -> Path:
    """Where fetched releases are kept; ``PDFQUARRY_TEST_CACHE`` names another folder."""
    return Path(os.environ.get("PDFQUARRY_TEST_CACHE") or Path.home() / ".cache" / "pdfquarry-tests")


def pip(*arguments: str, **environ: str) -> None:
    """Run pip; a failure fails the test with pip's last lines."""
    command = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else [shutil.which("pip") or "pip"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", *arguments],
        env=os.environ | environ,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        pytest.fail(f"could not fetch with pip {' '.join(arguments)}: {' | '.join(errors[-3:])[:600]}", pytrace=False)


def installed(*requirements: str, deps: bool = False) -> Path:
    """A folder with packages installed into it, to be put on ``PYTHONPATH``; made at the first call."""
    kept = cache() / "-".join(requirements).replace("==", "-")
    if not kept.is_dir():
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            pip("install", *([] if deps else ["--no-deps"]), "--target", f"{scratch}/kept", *requirements)
            os.replace(Path(scratch, "kept"), kept)
    return kept
