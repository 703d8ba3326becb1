"""Real runs of Snakemake on real PDFs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from project import ROOT, Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a copy of the workflow that a test may edit."""
    copy = tmp_path / "repository"
    for name in ("workflow", "profiles", "config"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", copy)
    return copy
