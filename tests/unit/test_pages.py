"""Pages of many documents are in the engine together, and whatever the engine does no page is lost or left unmarked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import colour_engine
from pdfquarry import document
from pdfquarry.answers import Answers
from pdfquarry.document import Task
from pdfquarry.errors import EnvironmentFault
from pdfquarry.link import MOST_DEATHS, EngineLink
from pdfquarry.pages import KILLED, Pages
from pdfquarry.records import DocumentRecord, Reason, State
from pdfquarry.settings import load
from pdfquarry.store import Store
from pdfs import signed_pdf, text_pdf

WORKFLOW = Path(document.__file__).parents[1]


class Process:
    """A fake engine's process, as ``warm`` would give it."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.socket, self.started, self.start_seconds = folder / "s", True, 0.5
        command = [sys.executable, colour_engine.__file__, "--socket", str(self.socket), "--seconds", str(seconds)]
        self._process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(WORKFLOW)})
        while not self.socket.exists():
            assert self.alive(), "the fake engine does not start"
            time.sleep(0.02)

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.socket.unlink(missing_ok=True)

    close = kill


class Bench:
    """Documents, and an engine to read them with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.starts, self.seconds = folder, 0, 0.01
        self.link = EngineLink(self._start, stall=3)
        self.sockets = Path(tempfile.mkdtemp(prefix="q"))  # a socket's path must be short
        self.highest = 0

    def _start(self) -> Process:
        self.starts += 1
        return Process(self.sockets, self.seconds)

    def task(self, path: Path) -> Task:
        import hashlib

        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return Task(digest, [str(path)], self.folder / "store", "o", "l", "tiny", 25_000_000, dpi=72, layout="vlm")

    def read(self, *paths: Path, window: int = 8, **more: Any) -> dict[str, DocumentRecord]:
        config = {"engine": "vllm", "vlm": {"pages_in_flight": window}, "limits": {"page_seconds": 20}}
        pages = Pages(load(config), 2, self.link, **more)
        found = {}
        for ended in pages.run([self.task(path) for path in paths]):
            self.highest = max(self.highest, len(self.link.in_flight))
            if ended is not None:
                found[Path(ended[0].paths[0]).stem] = ended[1]
        return found

    def markdown(self, path: Path) -> str:
        return (Store(self.folder / "store", "o").folder(self.task(path).digest) / "document.md").read_text()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.link.close()
    shutil.rmtree(made.sockets)


def test_pages_of_many_documents_are_in_flight_together_within_the_window(bench: Bench) -> None:
    bench.seconds = 0.2
    paths = [text_pdf(bench.folder / f"{name}.pdf", name, 2) for name in "abcde"]
    found = bench.read(*paths, window=6)
    assert all(record.state is State.DONE and len(record.pages) == 2 for record in found.values())
    assert 3 <= bench.highest <= 6, "one document has two pages only"
    page = found["a"].pages[1]
    assert (page.engine, page.layout, page.tokens_in, page.tokens_out, page.retries) == ("vlm", "vlm", 7, 5, 0)
    assert page.finish == {"stop": 1} and set(page.seconds) == {"render", "layout", "content", "wait"}
    assert "595 by 842" in bench.markdown(paths[0])


def test_a_page_that_kills_the_engine_falls_back_and_the_others_do_not(bench: Bench) -> None:
    colours = ["", "", "", "red", "", ""]
    path = signed_pdf(bench.folder / "a.pdf", "Stone", colours)
    other = text_pdf(bench.folder / "b.pdf", "Other", 3)
    found = bench.read(path, other)
    assert [page.fallback for page in found["a"].pages] == [[KILLED] if colour else [] for colour in colours]
    assert found["a"].pages[3].engine == "docvortex" and "Stone 4" in bench.markdown(path)
    assert found["a"].state is found["b"].state is State.DONE and bench.starts <= 4


def test_an_engine_that_hangs_is_started_again(bench: Bench) -> None:
    path = signed_pdf(bench.folder / "a.pdf", "Stone", ["", "blue", ""])
    record = bench.read(path)["a"]
    assert [page.fallback for page in record.pages] == [[], [KILLED], []]
    assert "Stone 2" in bench.markdown(path)


def test_an_answer_that_cannot_be_used_is_replaced_and_marked(bench: Bench) -> None:
    path = signed_pdf(bench.folder / "a.pdf", "Stone", ["lime", "yellow", "cyan", ""])
    record = bench.read(path)["a"]
    assert [page.fallback for page in record.pages] == [["engine_error"], ["no_regions"], ["loop"], []]
    text = bench.markdown(path)
    assert all(f"Stone {number}" in text for number in (1, 2, 3)) and "Stone 4" not in text
    assert "again and again" not in text and record.pages[2].engine == "vlm"


def test_a_page_with_ink_that_nobody_can_read_is_never_an_unmarked_empty_one(bench: Bench) -> None:
    path = bench.folder / "a.pdf"
    signed_pdf(path, "", ["yellow", ""])
    from pypdf import PdfReader, PdfWriter
    from pypdf.generic import DecodedStreamObject, NameObject

    writer = PdfWriter(clone_from=PdfReader(path))
    strokes = DecodedStreamObject()
    strokes.set_data(b"1 1 0 rg 0 180 20 20 re f 0 0 0 RG 3 w 40 40 m 200 120 l 60 140 l S")
    writer.pages[0][NameObject("/Contents")] = writer._add_object(strokes)
    writer.write(path)
    page = bench.read(path)["a"].pages[0]
    assert page.fallback == ["no_regions"]
    assert page.reason is Reason.OUTPUT_INVALID or page.engine != "none"


def test_a_machine_whose_engine_always_dies_fails_no_document(bench: Bench) -> None:
    def start() -> Process:
        bench.starts += 1
        process = Process(bench.sockets, 60)
        subprocess.Popen(["sh", "-c", f"sleep 1.5; kill -9 {process._process.pid}"])
        return process

    bench.link = EngineLink(start, stall=30)
    paths = [text_pdf(bench.folder / f"{name}.pdf", name, 20) for name in "ab"]
    with pytest.raises(EnvironmentFault, match="died"):
        bench.read(*paths, window=30)
    assert bench.starts == MOST_DEATHS


def test_a_job_goes_on_page_by_page_where_one_was_killed(bench: Bench) -> None:
    path = text_pdf(bench.folder / "a.pdf", "A", 6)
    task = bench.task(path)
    answers = Answers(Store(task.store, "o").scratch(task.digest) / document.ANSWERS)
    block = {"type": "text", "bbox": [0.1, 0.1, 0.9, 0.9], "angle": 0, "content": "kept from before"}
    for page in (0, 3):
        answers.add(
            {
                "page": page,
                "source": "text",
                "reason": None,
                "seconds": {},
                "blocks": [block],
                "trouble": None,
                "requests": [],
            }
        )
    with open(Store(task.store, "o").scratch(task.digest) / document.ANSWERS, "ab") as torn:
        torn.write(b'\n{"page": 5, "blo')
    record = bench.read(path)["a"]
    assert bench.markdown(path).count("kept from before") == 2 and bench.markdown(path).count("595 by 842") == 4
    assert len(record.pages) == 6 and record.state is State.DONE


def test_a_document_that_cannot_be_opened_takes_no_engine(bench: Bench) -> None:
    path = bench.folder / "bad.pdf"
    path.write_bytes(b"%PDF-1.4 nothing")
    assert bench.read(path)["bad"].reason is Reason.CORRUPT
    assert bench.starts == 0


def test_regions_that_were_found_before_go_to_the_engine_with_their_page(bench: Bench) -> None:
    path = text_pdf(bench.folder / "a.pdf", "A", 3)
    box = {"type": "text", "bbox": [0.0, 0.0, 1.0, 1.0], "angle": 0}
    bench.read(path, regions=lambda task: {0: [box], 1: [box, box]})
    text = bench.markdown(path)
    assert [f"{count} regions" in text for count in (0, 1, 2)] == [True] * 3
