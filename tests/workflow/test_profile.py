"""``snakemake profile`` for a person without a GPU: the report is written, says so, and is no part of a run."""

from __future__ import annotations

import json

import pytest

from project import Project

pytest.importorskip("torch")


def test_the_profile_is_written_without_a_gpu_and_says_so(project: Project) -> None:
    (project.corpus / "none.pdf").write_bytes(b"%PDF-1.4")
    ended = project.run("--nolock", "profile", arch="cpu")
    assert ended.code == 0, ended.text
    assert ended.rules == ["environment", "profile"]
    text = (project.results / "profile/profile.md").read_text(encoding="utf-8")
    assert "**No GPU was used.**" in text and "Not proved: there is no GPU" in text
    report = json.loads((project.results / "profile/profile.json").read_bytes())
    states = {(model["model"], model["state"]) for model in report["models"]}
    assert {("Qwen2-VL vision tower", "as written"), ("Qwen2-VL vision tower", "patched")} <= states
    assert all(model["operators"] and model["fallbacks"] == 0 for model in report["models"])
    assert json.loads((project.results / "environment.json").read_bytes())["proof"]["none"]
    assert project.run("--nolock", "profile", arch="cpu").rules == []
