"""A shard ends with every document in its receipt, and nothing is done twice."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import filelock
import pytest

from pdfquarry import corpus, plan
from pdfquarry.extract import Journal, extract
from pdfquarry.records import DocumentRecord, Reason, Receipt, State
from pdfquarry.results import Results
from pdfquarry.settings import load
from pdfs import form_bomb, picture_bomb, text_pdf


class Shard:
    """A corpus in one shard."""

    def __init__(self, tmp_path: Path) -> None:
        self.corpus, self.results = tmp_path / "c", Results(tmp_path / "r")
        self.settings = load({"corpus": str(self.corpus)})

    def plan(self) -> str:
        corpus.write_listing(self.results.listing, corpus.find([str(self.corpus)]))
        plan.plan(self.results, 1000, 1)
        (self.name,) = [path.stem for path in self.results.shards.glob("*.tsv")]
        return self.name

    def extract(self, **limits: object) -> Receipt:
        settings = load({"corpus": str(self.corpus), "limits": limits}) if limits else self.settings
        return extract(self.results, self.name, settings, 2)

    def named(self, receipt: Receipt) -> dict[str, DocumentRecord]:
        paths = plan.read_paths(self.results.paths(self.name))
        return {Path(path).stem: record for record in receipt.documents for path in paths[record.digest]}


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return Shard(tmp_path)


def test_a_finished_document_is_never_read_again(shard: Shard) -> None:
    for name in ("a", "b", "c"):
        text_pdf(shard.corpus / f"{name}.pdf", name)
    (shard.corpus / "bad.pdf").write_bytes(b"%PDF-1.4 nothing")
    shard.plan()
    first = shard.extract()
    assert (first.extracted, first.extracted_pages) == (4, 3)
    shard.results.receipt(shard.name).unlink()
    again = shard.extract()
    assert again.extracted == 0 and again.documents == first.documents
    # Without the journal the store still knows what was extracted; a failure is tried again.
    (shard.results.work(shard.name) / "journal.jsonl").unlink()
    assert shard.extract().extracted == 1


def test_a_killed_job_is_gone_on_with_from_its_journal(shard: Shard) -> None:
    for name in ("a", "b", "c"):
        text_pdf(shard.corpus / f"{name}.pdf", name)
    shard.plan()
    whole = shard.extract()
    journal = shard.results.work(shard.name) / "journal.jsonl"
    lines = journal.read_bytes().splitlines()
    # As after a kill in the middle of the third document: its files not in place, its line torn.
    victim = json.loads(lines[2])["record"]["digest"]
    folder = shard.results.store / whole.output / victim[:2] / victim[2:4] / victim
    folder.rename(folder.with_name("elsewhere"))
    journal.write_bytes(b"\n".join(lines[:2]) + b"\n" + lines[2][:40])
    shard.results.receipt(shard.name).unlink()
    receipt = shard.extract()
    assert receipt.extracted == 1 and len(receipt.documents) == 3
    assert (folder / "document.md").read_bytes() == (folder.with_name("elsewhere") / "document.md").read_bytes()


def test_bombs_cost_a_page_and_not_their_neighbours(shard: Shard) -> None:
    form_bomb(shard.corpus / "forms.pdf", "Bomb")
    picture_bomb(shard.corpus / "picture.pdf")
    text_pdf(shard.corpus / "good.pdf", "Good", 3)
    shard.plan()
    named = shard.named(shard.extract(page_seconds=6, memory_mb=3000))
    assert named["good"].state is State.DONE and named["good"].characters > 1000
    forms = named["forms"]
    assert forms.state is State.PARTIAL and [page.reason is None for page in forms.pages] == [True, False, True]
    assert forms.pages[1].reason in (Reason.TIMEOUT, Reason.CRASHED, Reason.OUT_OF_MEMORY)
    assert named["picture"].state in (State.DONE, State.FAILED)


def test_new_limits_try_again_what_old_ones_stopped_and_nothing_else(shard: Shard) -> None:
    form_bomb(shard.corpus / "forms.pdf", "Bomb")
    text_pdf(shard.corpus / "good.pdf", "Good")
    (shard.corpus / "bad.pdf").write_bytes(b"%PDF-1.4 nothing")
    shard.plan()
    assert shard.extract(page_seconds=4).extracted == 3
    assert shard.extract(page_seconds=4).extracted == 0
    again = shard.extract(page_seconds=5)
    assert again.extracted == 2 and shard.named(again)["good"].limits != again.limits


def test_a_document_that_vanished_is_left_to_the_next_plan(shard: Shard) -> None:
    text_pdf(shard.corpus / "a.pdf", "a")
    text_pdf(shard.corpus / "b.pdf", "b")
    text_pdf(shard.corpus / "c.pdf", "c")
    shard.plan()
    (shard.corpus / "a.pdf").unlink()
    text_pdf(shard.corpus / "b.pdf", "another b")
    named = shard.named(shard.extract())
    assert {name: record.reason for name, record in named.items()} == {
        "a": Reason.VANISHED,
        "b": Reason.VANISHED,
        "c": None,
    }
    digests = shard.results.passing(shard.name).read_text().split()
    assert sorted(digests[1:]) == sorted(record.digest for name, record in named.items() if name != "c")


def test_a_moved_document_is_found_under_its_new_name(shard: Shard) -> None:
    text_pdf(shard.corpus / "a.pdf", "a")
    shard.plan()
    (shard.corpus / "a.pdf").rename(shard.corpus / "b.pdf")
    shard.plan()
    assert shard.named(shard.extract())["b"].state is State.DONE


def test_a_second_job_for_a_shard_waits_for_the_first(shard: Shard) -> None:
    text_pdf(shard.corpus / "a.pdf", "a")
    shard.plan()
    shard.results.work(shard.name).mkdir(parents=True)
    with filelock.FileLock(shard.results.work(shard.name) / "lock"):
        job = threading.Thread(target=shard.extract)
        job.start()
        job.join(timeout=2)
        assert job.is_alive() and not shard.results.receipt(shard.name).exists()
    job.join(timeout=60)
    assert shard.results.receipt(shard.name).exists()


def test_lines_of_other_settings_and_torn_lines_are_no_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", "out", "lim")
    done = DocumentRecord(digest="d", state=State.DONE, limits="other")
    failed = DocumentRecord(digest="f", state=State.FAILED, reason=Reason.TIMEOUT, limits="lim")
    journal.add(done)
    with open(tmp_path / "j", "ab") as torn:
        torn.write(b'\n{"output": "out", "rec')
    journal.add(failed)
    assert journal.read() == {"d": done, "f": failed}
    assert Journal(tmp_path / "j", "out", "new").read() == {"d": done}
    assert Journal(tmp_path / "j", "new", "lim").read() == {}
    assert Journal(tmp_path / "none", "out", "lim").read() == {}
