"""The progress of the whole run: a line now and then from what the jobs write, on whatever machine they run."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pdfquarry import files
from pdfquarry.plan import INDEX_COLUMNS
from pdfquarry.results import Results


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run is: shards, documents and pages, finished and in all, and failed documents."""

    shards: tuple[int, int]
    documents: tuple[int, int]
    pages: tuple[int, int]
    failed: int


def standing(results: Results) -> Standing | None:
    """Return how far the run is, or None before there is a plan."""
    try:
        index = list(files.read_table(results.index, INDEX_COLUMNS))
    except Exception:  # the plan is just being made
        return None
    shards = documents = documents_done = pages = failed = 0
    pages_done = 0.0
    for shard, planned_documents, planned_pages in index:
        documents += int(planned_documents)
        pages += int(planned_pages)
        try:
            state = json.loads((results.work(shard) / "progress.json").read_bytes())
        except (OSError, ValueError):
            continue
        documents_done += min(state["documents_done"], int(planned_documents))
        pages_done += min(state["pages_done"], int(planned_pages))
        failed += state["failed"]
        shards += state["documents_done"] >= int(planned_documents)
    return Standing((shards, len(index)), (documents_done, documents), (int(pages_done), pages), failed)


class Display:
    """Prints a line about the run every so many seconds, from a thread of its own, to the terminal and a log file.

    Args:
        results: the results folder.
        seconds: between two lines; 0 takes 5 on a terminal and 30 elsewhere.
        say: prints a line.
    """

    def __init__(self, results: Results, seconds: float, say: Callable[[str], None] | None = None) -> None:
        self._results = results
        self._seconds = seconds or (5 if sys.stderr.isatty() else 30)
        self._say = say or (lambda line: print(line, file=sys.stderr, flush=True))
        self._stop = threading.Event()
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        log = self._results.root / "logs" / "progress.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        while not self._stop.wait(self._seconds):
            now = standing(self._results)
            if now is None or now.documents[0] == now.documents[1]:
                continue
            line = self.line(now, time.monotonic())
            self._say(line)
            with open(log, "a", encoding="utf-8") as out:
                out.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")

    def line(self, now: Standing, at: float) -> str:
        """Return the line for a standing at ``at`` (seconds of a clock); rates count from the first page on."""
        pages, total = now.pages
        if self._first is None or pages == self._first[1]:
            self._first = (at, pages)
        rate = _rate(self._first, (at, pages))
        recent = _rate(self._last or self._first, (at, pages))
        self._last = (at, pages)
        left = _duration((total - pages) / rate) if rate else "unknown"
        return (
            f"{_of(now.shards)} shards, {_of(now.documents)} documents ({now.failed} failed), {_of(now.pages)} pages, "
            f"{recent:.1f} pages/s now, {rate:.1f} over all, {left} left"
        )


def _rate(before: tuple[float, int], now: tuple[float, int]) -> float:
    return (now[1] - before[1]) / (now[0] - before[0]) if now[0] > before[0] else 0.0


def _of(pair: tuple[int, int]) -> str:
    return f"{pair[0]}/{pair[1]}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
