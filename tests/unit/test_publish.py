"""What is published is the corpus's tree: whole, nothing more, and nobody else's files are touched."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pandas
import pytest

from pdfquarry import corpus, files, plan, summarize
from pdfquarry.errors import FailedDocuments, ResultsError
from pdfquarry.extract import extract
from pdfquarry.publish import COLUMNS, Published, publish
from pdfquarry.results import Results
from pdfquarry.settings import load
from pdfs import text_pdf

FORMATS = ["markdown", "content_list"]


class Tree:
    """A small corpus, extracted."""

    def __init__(self, folder: Path) -> None:
        self.corpus, self.results = folder / "c", Results(folder / "r")
        self.settings = load({"corpus": str(self.corpus)})
        text_pdf(self.corpus / "a.pdf", "A")
        text_pdf(self.corpus / "sub/B.pdf", "B")
        text_pdf(self.corpus / "z.pdf", "A")
        (self.corpus / "bad.pdf").write_bytes(b"%PDF-1.4 nothing")
        self.extract()

    def extract(self) -> None:
        corpus.write_listing(self.results.listing, corpus.find([str(self.corpus)]))
        plan.plan(self.results, 1000, 1)
        for path in self.results.shards.glob("*.tsv"):
            extract(self.results, path.stem, self.settings, 1)

    def publish(self, formats: list[str] = FORMATS) -> Published:
        return publish(self.results, self.settings.output_digest(), formats)

    def files(self) -> list[str]:
        tree = self.results.markdown
        return sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_publishing_again_writes_nothing_and_damage_is_repaired(tree: Tree) -> None:
    mark = hashlib.sha256(b"c/sub/B.pdf").hexdigest()[:12]
    assert tree.publish() == Published(4, 3, 0)
    there = tree.files()
    assert f"c/sub/B.pdf~{mark}/B.md" in there and "c/a.pdf/a.md" in there and not [n for n in there if "bad" in n]
    assert tree.publish() == Published(4, 0, 0)
    (tree.results.markdown / "c/a.pdf/a.md").unlink()
    (tree.results.markdown / "c/z.pdf/extra.txt").write_text("by hand")
    assert tree.publish() == Published(4, 2, 0)
    assert tree.files() == there


def test_published_files_are_read_only_links_to_the_store(tree: Tree) -> None:
    tree.publish()
    status = (tree.results.markdown / "c/a.pdf/a.md").stat()
    assert status.st_nlink >= 3 and status.st_mode & 0o222 == 0


def test_files_of_others_in_the_tree_are_left_alone(tree: Tree) -> None:
    tree.publish()
    notes = tree.results.markdown / "c/notes"
    notes.mkdir()
    (notes / "mine.md").write_text("mine")
    (tree.corpus / "a.pdf").unlink()
    tree.extract()
    assert tree.publish().removed == 1
    assert (notes / "mine.md").read_text() == "mine" and not (tree.results.markdown / "c/a.pdf").exists()


def test_a_link_planted_in_the_tree_leads_nowhere(tree: Tree, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.md").write_text("precious")
    tree.publish()
    published = tree.results.markdown / "c/a.pdf/a.md"
    published.unlink()
    published.symlink_to(outside / "a.md")
    tree.publish()
    assert (outside / "a.md").read_text() == "precious" and not published.is_symlink()


def test_folders_that_are_links_are_replaced_and_what_they_lead_to_is_left(tree: Tree, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    tree.publish()
    there = tree.files()
    folders = tree.results.markdown / "c"
    for name in ("a.pdf", "sub"):
        (folders / name).rename(tmp_path / f"moved-{name}")
        (folders / name).symlink_to(outside)
    (folders / "z.pdf/images").symlink_to(outside)
    tree.publish()
    assert tree.files() == there and not [path for path in tree.results.markdown.rglob("*") if path.is_symlink()]
    assert [path.name for path in outside.iterdir()] == ["precious"]


def test_the_table_has_a_row_for_each_file_with_its_types(tree: Tree) -> None:
    tree.publish([*FORMATS, "jsonl"])
    table = pandas.read_parquet(tree.results.root / "documents.parquet")
    assert list(table.columns) == list(COLUMNS) and table["pages"].dtype == "int64"
    states = {os.path.basename(row.path): (row.state, row.reason) for row in table.itertuples()}
    assert states == {
        "a.pdf": ("done", ""),
        "B.pdf": ("done", ""),
        "z.pdf": ("duplicate", ""),
        "bad.pdf": ("failed", "corrupt"),
    }
    lines = (tree.results.root / "documents.jsonl").read_text().splitlines()
    assert [json.loads(line)["path"] for line in lines] == list(table["path"])


def test_a_receipt_that_lacks_a_document_is_an_error_that_names_it(tree: Tree) -> None:
    (path,) = tree.results.root.glob("shards/*/receipt.json")
    receipt = json.loads(path.read_bytes())
    receipt["documents"].pop()
    path.write_text(json.dumps(receipt))
    with pytest.raises(ResultsError, match=r"receipt\.json: lacks .*delete it"):
        tree.publish()
    path.write_text("{")
    with pytest.raises(ResultsError, match=r"receipt\.json: missing or damaged"):
        tree.publish()


def test_the_summary_asserts_that_found_is_accounted_for(tree: Tree) -> None:
    tree.publish()
    text = summarize.summarize(tree.results)
    assert "| documents found | 4 |" in text and "| corrupt | 1 |" in text
    with pytest.raises(FailedDocuments, match="1 documents failed"):
        summarize.check(tree.results)
    rows = list(files.read_table(tree.results.corpus, plan.CORPUS_COLUMNS))
    files.write(tree.results.corpus, files.table(plan.CORPUS_COLUMNS, [*rows, rows[0]]))
    with pytest.raises(ResultsError, match="5 files were found and 4 are accounted for"):
        summarize.summarize(tree.results)


def test_a_full_disk_or_a_read_only_folder_is_told_in_a_line(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ResultsError, match="No space left on device"):
        tree.publish()
    with pytest.raises(ResultsError, match="No space left on device"):
        files.write(tree.results.root / "x", "y")
    assert not list(tree.results.root.glob(".x*"))
