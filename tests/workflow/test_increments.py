"""Batches arrive, and each run does exactly what changed.

The tests share one results folder, in the order of this file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdfs import text_pdf
from project import ROOT, Project

PLANNED = ["plan", "publish", "summarize"]
EXTRACTED = ["extract", *PLANNED]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("increments"))
    for name in ("a", "b", "sub/c", "sub/d"):
        text_pdf(project.corpus / f"{name}.pdf", name.upper(), 2)
    (project.corpus / "bad.pdf").write_bytes(b"%PDF-1.7 and nothing more")
    yield project


def test_a_first_run_does_everything(batch: Project) -> None:
    ended = batch.run()
    assert ended.code == 0, ended.text
    assert ended.rules == sorted(["environment", *EXTRACTED]) and ended.extracted == 5
    assert batch.states() == {"a.pdf": "done", "b.pdf": "done", "c.pdf": "done", "d.pdf": "done", "bad.pdf": "corrupt"}
    assert sorted(name for name in batch.tree() if name.endswith(".md")) == [
        "c/a.pdf/a.md",
        "c/b.pdf/b.md",
        "c/sub/c.pdf/c.md",
        "c/sub/d.pdf/d.md",
    ]
    for told in (
        "5 documents: 4 done, 1 failed",
        "bad.pdf (corrupt)",
        "results/markdown",
        "results/summary/summary.md",
    ):
        assert told in ended.text


def nothing(batch: Project, **config: object) -> None:
    ended = batch.run(**config)
    assert ended.code == 0 and "Nothing to be done" in ended.text and not ended.rules


def test_a_second_run_does_nothing(batch: Project) -> None:
    nothing(batch)


def test_cores_and_settings_that_touch_no_output_redo_nothing(batch: Project) -> None:
    nothing(batch, cores=1)
    nothing(batch, progress_seconds=3, languages="en,de", pages_per_shard=7)


def test_edited_code_redoes_nothing(batch: Project) -> None:
    for path in [*(ROOT / "workflow/pdfquarry").glob("*.py"), *(ROOT / "workflow/rules").glob("*.smk")]:
        os.utime(path)
    nothing(batch)


def changed(batch: Project, rules: list[str], extracted: int) -> None:
    ended = batch.run()
    assert ended.code == 0, ended.text
    assert (ended.rules, ended.extracted) == (sorted(rules), extracted)


def test_a_touched_file_is_not_read_again(batch: Project) -> None:
    os.utime(batch.corpus / "a.pdf")
    changed(batch, ["plan"], 0)


def test_an_added_file_is_the_only_one_read_wherever_it_sorts(batch: Project) -> None:
    text_pdf(batch.corpus / "0first.pdf", "First")
    changed(batch, EXTRACTED, 1)
    text_pdf(batch.corpus / "zlast.pdf", "Last")
    changed(batch, EXTRACTED, 1)


def test_a_changed_file_is_the_only_one_read(batch: Project) -> None:
    text_pdf(batch.corpus / "a.pdf", "A changed", 2)
    changed(batch, EXTRACTED, 1)
    assert b"A changed, part 1" in batch.tree()["c/a.pdf/a.md"]


def test_a_renamed_file_moves_in_the_tree_and_is_not_read(batch: Project) -> None:
    before = batch.tree()["c/b.pdf/b.md"]
    (batch.corpus / "b.pdf").rename(batch.corpus / "sub" / "renamed.pdf")
    changed(batch, PLANNED, 0)
    tree = batch.tree()
    assert tree["c/sub/renamed.pdf/renamed.md"] == before
    assert not [name for name in tree if name.startswith("c/b.pdf")]


def test_a_copy_is_published_twice_and_read_once(batch: Project) -> None:
    shutil.copy(batch.corpus / "a.pdf", batch.corpus / "copy.pdf")
    changed(batch, PLANNED, 0)
    tree, states = batch.tree(), batch.states()
    assert tree["c/copy.pdf/copy.md"] == tree["c/a.pdf/a.md"]
    assert (states["a.pdf"], states["copy.pdf"]) == ("done", "duplicate")


def test_a_removed_file_leaves_the_tree_and_comes_back_unread(batch: Project) -> None:
    (batch.corpus / "sub/d.pdf").rename(batch.folder / "kept")
    changed(batch, PLANNED, 0)
    assert "d.pdf" not in batch.states() and not [name for name in batch.tree() if "/d.pdf/" in name]
    (batch.folder / "kept").rename(batch.corpus / "sub/d.pdf")
    changed(batch, PLANNED, 0)
    assert batch.states()["d.pdf"] == "done" and "c/sub/d.pdf/d.md" in batch.tree()


def test_a_whole_shard_that_leaves_takes_nothing_with_it(batch: Project) -> None:
    (batch.corpus / "zlast.pdf").unlink()
    changed(batch, PLANNED, 0)
    assert "zlast.pdf" not in batch.states() and batch.states()["0first.pdf"] == "done"


def test_a_deleted_receipt_is_made_again_without_reading(batch: Project) -> None:
    batch.results.joinpath("shards", min(os.listdir(batch.results / "shards")), "receipt.json").unlink()
    changed(batch, ["extract", "publish", "summarize"], 0)


def test_deleted_markdown_is_published_again_without_reading(batch: Project) -> None:
    before = batch.tree()
    shutil.rmtree(batch.results / "markdown")
    changed(batch, ["publish", "summarize"], 0)
    assert batch.tree() == before


def test_a_deleted_plan_is_made_again_without_reading(batch: Project) -> None:
    before = batch.tree()
    shutil.rmtree(batch.results / "plan")
    ended = batch.run()
    assert ended.code == 0, ended.text
    # Only the document that failed is tried again: the store keeps what came out.
    assert ended.extracted == 1 and batch.tree() == before


def test_other_formats_are_published_without_reading(batch: Project) -> None:
    ended = batch.run(formats="markdown,middle_json,jsonl")
    assert ended.code == 0 and ended.extracted == 0 and ended.rules == ["publish", "summarize"]
    assert (batch.results / "documents.jsonl").exists()
    names = {Path(name).name for name in batch.tree()}
    assert "middle.json" in names and "content_list.json" not in names
    assert batch.run().extracted == 0
    assert not (batch.results / "documents.jsonl").exists()


def test_a_setting_that_changes_the_output_says_so_reads_all_and_back_none(batch: Project) -> None:
    number = len(set(batch.table()["sha256"]))
    ended = batch.run(limits="{page_pixels: 1000000}")
    assert ended.code == 0, ended.text
    assert "limits.page_pixels changed" in ended.text and ended.extracted == number
    back = batch.run()
    assert "limits.page_pixels changed" in back.text and back.extracted <= 1


def test_new_limits_try_failures_again_and_nothing_else(batch: Project) -> None:
    ended = batch.run(limits="{page_seconds: 60}")
    assert ended.code == 0 and ended.extracted == 1


def test_the_numbers_add_up_after_all_that(batch: Project) -> None:
    batch.run()
    table = batch.table()
    found = [path for path in batch.corpus.rglob("*") if path.is_file()]
    assert len(table) == len(found)
    published = [batch.results / name for name in table["markdown"] if name]
    assert published and all(path.is_file() for path in published)
    there = {str(path.relative_to(batch.results)) for path in (batch.results / "markdown").rglob("*.md")}
    assert there == {name for name in table["markdown"] if name}
