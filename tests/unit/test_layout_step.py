"""A detector looks at every page of a shard once, and its regions wait for the model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import doclayout
from pdfquarry import corpus, plan
from pdfquarry.errors import EnvironmentFault, ResultsError
from pdfquarry.layout import layout
from pdfquarry.regions import Regions
from pdfquarry.results import Results
from pdfquarry.settings import Settings, load
from pdfs import text_pdf


def planned(tmp_path: Path, **versions: str) -> tuple[Results, Settings, str]:
    """Return a results folder with one shard, whose environment.json names an interpreter with these packages."""
    results = Results(tmp_path / "r")
    for name, pages in (("a", 2), ("b", 1)):
        text_pdf(tmp_path / "c" / f"{name}.pdf", name, pages)
    (tmp_path / "c" / "bad.pdf").write_bytes(b"%PDF-1.4 nothing")
    corpus.write_listing(results.listing, corpus.find([str(tmp_path / "c")]))
    plan.plan(results, 1000, 1)
    python = tmp_path / "python"
    packages = {name: {"version": version, "location": ""} for name, version in versions.items()}
    state = {"arch": "cpu", "gpus": [], "gpu_python": {"executable": str(python), "packages": packages}}
    (results.root / "environment.json").write_text(json.dumps(state))
    config = {"engine": "vllm", "layout": "doclayout-yolo", "detector": {"weights": str(tmp_path / "random.pt")}}
    settings = load(config | {"vlm": {"dpi": 72, "linger_seconds": 0}})
    (shard,) = [path.stem for path in results.shards.glob("*.tsv")]
    return results, settings, shard


@pytest.mark.slow
def test_every_page_has_its_regions_and_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("PDFQUARRY_LOCKS", str(tmp_path / "locks"))
    results, settings, shard = planned(tmp_path, **{"doclayout-yolo": "0.0.4"})
    beside = str(Path(__file__).parent)
    path = doclayout.python_path()
    # The engine's Python, with the operators declared that torchvision lacks beside a CPU build of torch.
    (tmp_path / "site").mkdir()
    declare = "from doclayout import declare_torchvision_operators\ndeclare_torchvision_operators()\n"
    (tmp_path / "site" / "sitecustomize.py").write_text(declare)
    (tmp_path / "python").write_text(
        f'#!/bin/sh\nexport PYTHONPATH="{tmp_path}/site:{path}:{beside}" YOLO_CONFIG_DIR={tmp_path}\n'
        f'exec {sys.executable} "$@"\n'
    )
    (tmp_path / "python").chmod(0o755)
    made = doclayout.run(Path(__file__).with_name("detector_weights.py"), tmp_path, PYTHONPATH=f"{path}:{beside}")
    assert made.returncode == 0, made.stderr[-2000:]

    receipt = layout(results, shard, settings, 2)
    assert (receipt.documents, receipt.looked_at, receipt.pages) == (3, 3, 3) and len(receipt.failed) == 1
    assert receipt.engine_report and "0.0.4" in receipt.engine_report.state["detector"]
    regions = Regions(results.regions, settings)
    found = {p.digest: regions.get(p.digest) for p in plan.read_shard(results.shard(shard))}
    pages = sorted(sorted(one) for one in found.values() if one is not None)
    assert pages == [[0], [0, 1]], "the document that can't be opened has none"
    every = [region for one in found.values() if one for page in one.values() for region in page]
    assert all({"type", "bbox", "angle"} <= set(region) for region in every)
    again = layout(results, shard, settings, 2)
    assert again.looked_at == 1, "only what has none is looked at again"


def test_what_the_detector_lacks_is_said_before_anything_is_opened(tmp_path: Path) -> None:
    results, settings, shard = planned(tmp_path)
    with pytest.raises(EnvironmentFault, match=r"detector\.weights: there is no file"):
        layout(results, shard, settings, 1)
    (tmp_path / "random.pt").touch()
    with pytest.raises(EnvironmentFault, match="doclayout-yolo is not installed"):
        layout(results, shard, settings, 1)


def test_regions_that_are_gone_are_no_empty_page(tmp_path: Path) -> None:
    _, settings, _ = planned(tmp_path)
    regions = Regions(tmp_path / "regions", settings)
    regions.put("d" * 64, {1: [{"type": "text"}]})
    assert regions.get("d" * 64) == {1: [{"type": "text"}]}
    regions.path("d" * 64).write_text("{")
    task = type("Task", (), {"digest": "d" * 64})()
    with pytest.raises(ResultsError, match=r"layout\.json"):
        regions.read(task)
