"""For any sequence of edits, the shards partition the live documents and nothing planned moves."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pdfquarry import files, plan, probe
from pdfquarry.corpus import find, write_listing
from pdfquarry.errors import CorpusError, ResultsError
from pdfquarry.plan import CORPUS_COLUMNS, INDEX_COLUMNS, Document, divide, read_paths, read_shard
from pdfquarry.probe import Probe
from pdfquarry.records import Reason
from pdfquarry.results import Results

opened: list[str] = []


def quick_probe(paths: list[str], workers: int) -> dict[str, Probe]:
    """Probe without child processes; a file's first byte is its number of pages."""
    opened.extend(paths)
    data = {path: Path(path).read_bytes() for path in paths}
    return {path: Probe(hashlib.sha256(raw).hexdigest(), raw[0] if raw else 0) for path, raw in data.items()}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "probe", quick_probe)


documents = st.builds(Document, st.uuids().map(str), st.just(1), st.integers(0, 300))


@given(st.lists(documents, max_size=200), st.integers(1, 500))
def test_shards_keep_order_lose_nothing_and_are_balanced_by_pages(given: list[Document], pages: int) -> None:
    shards = divide(given, pages)
    assert [document for shard in shards for document in shard] == given and all(shards)
    weights = [sum(max(1, document.pages) for document in shard) for shard in shards]
    longest = max((max(1, document.pages) for document in given), default=0)
    # A document is never split, so a shard is off its share by one document at most.
    assert all(weight <= pages + longest for weight in weights)
    if weights:
        assert max(weights) - min(weights) <= 2 * longest


class Edits(RuleBasedStateMachine):
    """A corpus that is edited at random, and planned after each edit."""

    names = st.sampled_from([f"{letter}.pdf" for letter in "abcdef"] + ["s/g.pdf", "s/h.PDF"])
    contents = st.binary(min_size=1, max_size=3)

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.corpus, self.results = self.root / "c", Results(self.root / "r")
        self.corpus.mkdir()
        self.home: dict[str, str] = {}
        self.frozen: dict[str, bytes] = {}
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(plan, "probe", quick_probe)
        self.put("a.pdf", b"\x05")

    @rule(name=names, content=contents)
    def put(self, name: str, content: bytes) -> None:
        (self.corpus / name).parent.mkdir(exist_ok=True)
        (self.corpus / name).write_bytes(content)

    @rule(old=names, new=names)
    def rename(self, old: str, new: str) -> None:
        if (self.corpus / old).exists():
            (self.corpus / new).parent.mkdir(exist_ok=True)
            os.replace(self.corpus / old, self.corpus / new)

    @rule(old=names, new=names)
    def copy(self, old: str, new: str) -> None:
        if (self.corpus / old).exists() and old != new:
            (self.corpus / new).parent.mkdir(exist_ok=True)
            shutil.copy(self.corpus / old, self.corpus / new)

    @rule(name=names)
    def remove(self, name: str) -> None:
        if len([path for path in self.corpus.rglob("*") if path.is_file()]) > 1:
            (self.corpus / name).unlink(missing_ok=True)

    @rule(name=names)
    def touch(self, name: str) -> None:
        if (self.corpus / name).exists():
            os.utime(self.corpus / name)

    @rule(table=st.sampled_from(["corpus", "index", "digests"]))
    def lose_a_table(self, table: str) -> None:
        getattr(self.results, table).unlink(missing_ok=True)

    @invariant()
    def planned_right(self) -> None:
        if not hasattr(self, "root"):
            return
        entries = find([str(self.corpus)])
        write_listing(self.results.listing, entries)
        plan.plan(self.results, 3, 1)
        rows = list(files.read_table(self.results.corpus, CORPUS_COLUMNS))
        assert [row[0] for row in rows] == [entry.tree for entry in entries]
        live = {row[3]: row[4] for row in rows}
        shards = {path.stem: path.read_bytes() for path in self.results.shards.glob("*.tsv")}
        for name, before in self.frozen.items():
            assert shards[name] == before, "a planned shard changed"
        planned = [document.digest for name in shards for document in read_shard(self.results.shard(name))]
        assert len(planned) == len(set(planned)), "a document is in two shards"
        assert set(live) <= set(planned) and all(live.values())
        for digest, shard in live.items():
            assert self.home.setdefault(digest, shard) == shard, "a document moved"
            paths = read_paths(self.results.paths(shard))[digest]
            assert {hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths} == {digest}
        index = {row[0]: int(row[1]) for row in files.read_table(self.results.index, INDEX_COLUMNS)}
        assert index == {shard: len([d for d, s in live.items() if s == shard]) for shard in set(live.values())}
        self.frozen = shards

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.patch.undo()
            shutil.rmtree(self.root)


TestEdits = Edits.TestCase
TestEdits.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)


def planned(tmp_path: Path, pages_per_shard: int = 1000) -> plan.Planned:
    write_listing(Results(tmp_path / "r").listing, find([str(tmp_path / "c")]))
    return plan.plan(Results(tmp_path / "r"), pages_per_shard, 1)


def test_only_new_and_changed_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    for name in "abc":
        (tmp_path / f"c/{name}.pdf").write_bytes(name.encode())
    assert planned(tmp_path) == plan.Planned(3, 3, 3, 1)
    assert planned(tmp_path) == plan.Planned(3, 0, 0, 0)
    (tmp_path / "c/d.pdf").write_bytes(b"d")
    os.utime(tmp_path / "c/a.pdf", ns=(1, 1))
    (tmp_path / "c/b.pdf").rename(tmp_path / "c/bb.pdf")
    opened.clear()
    assert planned(tmp_path) == plan.Planned(4, 3, 1, 1)
    assert sorted(Path(path).name for path in opened) == ["a.pdf", "bb.pdf", "d.pdf"]


def test_a_document_that_failed_for_the_moment_is_planned_again(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/a.pdf").write_bytes(b"a")
    planned(tmp_path)
    results = Results(tmp_path / "r")
    (first,) = [path.stem for path in results.shards.glob("*.tsv")]
    digest = hashlib.sha256(b"a").hexdigest()
    files.write(results.passing(first), files.table(("digest",), [(digest,)]))
    assert planned(tmp_path).shards == 1
    (row,) = files.read_table(results.corpus, CORPUS_COLUMNS)
    assert row[3] == digest and row[4] != first
    assert planned(tmp_path).shards == 0


def test_files_that_can_not_be_read_are_accounted_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/a.pdf").write_bytes(b"a")
    refused = Probe("", 0, Reason.UNREADABLE)
    monkeypatch.setattr(plan, "probe", lambda paths, workers: dict.fromkeys(paths, refused))
    assert planned(tmp_path) == plan.Planned(1, 1, 0, 0)
    (row,) = files.read_table(Results(tmp_path / "r").corpus, CORPUS_COLUMNS)
    assert row[3:] == ["", "", "unreadable"]


def test_damaged_tables_are_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/a.pdf").write_bytes(b"a")
    planned(tmp_path)
    results = Results(tmp_path / "r")
    (shard,) = results.shards.glob("*.tsv")
    shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(ResultsError, match=f"{shard.name}.*delete"):
        planned(tmp_path)
    with pytest.raises(CorpusError):
        find([str(tmp_path / "nowhere")])


def test_the_probe_counts_pages_and_survives_bad_files(tmp_path: Path) -> None:
    from pdfs import text_pdf

    good = text_pdf(tmp_path / "good.pdf", "Good", 3)
    bad = tmp_path / "bad.pdf"
    bad.write_bytes(b"%PDF-1.4\nnonsense")
    gone = str(tmp_path / "gone.pdf")
    found = probe.probe([str(good), str(bad), gone], 2)
    assert found[str(good)] == Probe(hashlib.sha256(good.read_bytes()).hexdigest(), 3)
    assert found[str(bad)] == Probe(hashlib.sha256(bad.read_bytes()).hexdigest(), 0)
    assert found[gone] == Probe("", 0, Reason.VANISHED)
