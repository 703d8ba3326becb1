"""Documents of a shard through an engine, page by page.

Readers render pages ahead, of as many documents as the window holds; the engine has them all in flight, so it never
waits for a document to end; a document whose last page is answered is assembled by a reader. What is in memory is
bounded by the window, whatever a document's length.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pdfquarry import document
from pdfquarry.answers import Answers
from pdfquarry.document import ANSWERS, Task
from pdfquarry.link import EngineLink
from pdfquarry.pictures import Picture, Pictures, PictureTask
from pdfquarry.readers import Beat, Death, Readers
from pdfquarry.records import DocumentRecord, Stage
from pdfquarry.settings import Settings
from pdfquarry.store import Store
from pdfquarry.textlayer import Source

# Pages of one task of a reader: enough to open a document for, few enough to share a book among readers.
_CHUNK = 4
# Bytes of pictures in flight, beside the number of pages that the settings give.
_MOST_BYTES = 2**30
# Readers that one document may kill while it is rendered and assembled.
_MOST_DEATHS = 8
# Why a page falls back whose engine died each time it was read.
KILLED = "engine_died"

Ended = tuple[Task, DocumentRecord]


@dataclass(slots=True)
class AssembleTask:
    """A document whose pages are all answered."""

    document: Task

    def __call__(self, beat: Beat) -> DocumentRecord:
        """Return its record, in the store."""
        return document.assemble_answers(self.document, beat)


def work(task: PictureTask | AssembleTask, beat: Beat) -> Pictures | DocumentRecord:
    """Do a task, inside a reader."""
    return task(beat)


def entry_of(picture: Picture, answer: dict[str, Any] | None) -> dict[str, Any]:
    """Return what ``Answers`` keeps of a page: its picture's facts, and the engine's answer if it went there."""
    entry: dict[str, Any] = {"page": picture.page, "source": str(picture.source), "reason": picture.reason}
    entry["seconds"] = {"render": picture.seconds}
    if answer is not None and "error" in answer:
        entry["trouble"] = "engine_error"
    elif answer is not None:
        entry |= {key: answer[key] for key in ("blocks", "trouble", "requests")}
        entry["seconds"] |= answer["seconds"] | {"wait": answer["wait"]}
    return entry


@dataclass(slots=True)
class _Open:
    """A document under way: its answers, pages not yet rendered, pages not yet answered."""

    task: Task
    answers: Answers
    known: set[int]
    count: int | None = None
    next: int = 0
    pending: set[int] = field(default_factory=set)
    assembling: bool = False
    done: int = 0


class Pages:
    """Reads the documents of a shard.

    Args:
        settings: of the run.
        workers: reader processes.
        link: to the engine.
        regions: returns what a detector found on the pages of a document (page from 0 -> regions), or None when the
            engine finds them itself.
        finish: what to do with a document whose pages are all answered; None assembles it.
    """

    def __init__(
        self,
        settings: Settings,
        workers: int,
        link: EngineLink,
        regions: Callable[[Task], dict[int, list[dict[str, Any]]]] | None = None,
        finish: Callable[[Task, Answers], DocumentRecord] | None = None,
    ) -> None:
        self._window = settings.vlm.pages_in_flight
        self._link, self._regions, self._finish = link, regions, finish
        limits = settings.limits
        self._readers: Readers[PictureTask | AssembleTask] = Readers(
            work, workers, limits.page_seconds, limits.memory_mb, document.prepare
        )
        self._jobs: list[PictureTask | AssembleTask] = []
        self._open: dict[str, _Open] = {}
        self._rendering = 0
        self._ready: deque[int] = deque()
        self._pictures: dict[int, tuple[_Open, Picture]] = {}
        self._ids = itertools.count()
        self._bytes = 0
        self._suspects: set[int] = set()
        self._limit = self._window
        self._found: dict[str, dict[int, list[dict[str, Any]]]] = {}

    def run(self, tasks: list[Task]) -> Iterator[Ended | None]:
        """Yield (task, record) as documents end, and None often in between. The order is kept where it can be.

        Raises EnvironmentFault when the engine can't be had; what is finished stays.
        """
        waiting = deque(tasks)
        try:
            for ended in self._readers.run(self._jobs, more=lambda: bool(waiting or self._open), pause=0.02):
                finished: list[Ended] = []
                if ended is not None:
                    finished += self._after(*ended)
                for answer in self._link.answers():
                    self._answered(answer)
                self._recover()
                self._send()
                finished += self._settle()
                self._schedule(waiting)
                yield from finished
                yield None
        finally:
            self._link.close()

    def pages_done(self) -> int:
        """Return the answered pages of documents that have not ended."""
        return sum(one.done for one in self._open.values())

    def _after(self, task: PictureTask | AssembleTask, outcome: Any) -> list[Ended]:
        """Take what a reader gave; return the document if it has ended."""
        one = self._open[task.document.digest]
        if isinstance(task, PictureTask):
            self._rendering -= len(task.pages)
            if isinstance(outcome, Death):
                return self._render_death(one, task, outcome)
            if isinstance(outcome, DocumentRecord):
                return self._end(one, outcome)
            if one.count is None:
                one.count = outcome.count
            one.pending -= set(task.pages) - {picture.page for picture in outcome.pictures}
            for picture in outcome.pictures:
                if picture.reason or picture.source == Source.BLANK:
                    self._keep(one, picture, None)
                else:
                    page = next(self._ids)
                    self._pictures[page] = (one, picture)
                    self._bytes += len(picture.pixels)
                    self._ready.append(page)
            return []
        if isinstance(outcome, Death):
            return self._assemble_death(one, outcome)
        return self._end(one, outcome)

    def _render_death(self, one: _Open, task: PictureTask, death: Death) -> list[Ended]:
        progress = death.progress
        one.task.deaths += 1
        if progress.stage != Stage.READ or one.task.deaths >= _MOST_DEATHS:
            return self._end(one, one.task.failed(death.reason, death.detail))
        one.task.skip = one.task.skip | {progress.first: death.reason}
        self._rendering += len(task.pages)
        self._jobs.insert(0, PictureTask(one.task, task.pages))
        return []

    def _assemble_death(self, one: _Open, death: Death) -> list[Ended]:
        progress = death.progress
        one.task.deaths += 1
        if progress.stage not in (Stage.READ, Stage.ANALYZE) or one.task.deaths >= _MOST_DEATHS:
            return self._end(one, one.task.failed(death.reason, death.detail))
        if progress.first == progress.last:
            one.task.skip = one.task.skip | {progress.first: death.reason}
        else:
            one.task.alone = one.task.alone | frozenset(range(progress.first, progress.last + 1))
        self._jobs.insert(0, AssembleTask(one.task))
        return []

    def _answered(self, answer: dict[str, Any]) -> None:
        if answer["id"] in self._pictures:
            one, picture = self._drop(answer["id"])
            self._keep(one, picture, answer)

    def _keep(self, one: _Open, picture: Picture, answer: dict[str, Any] | None) -> None:
        one.answers.add(entry_of(picture, answer))
        one.pending.discard(picture.page)
        one.done += 1

    def _drop(self, page: int) -> tuple[_Open, Picture]:
        one, picture = self._pictures.pop(page)
        self._bytes -= len(picture.pixels)
        self._suspects.discard(page)
        if not self._suspects:
            self._limit = self._window
        return one, picture

    def _recover(self) -> None:
        """After the engine's death, put its pages back; those that were there are read a few at a time until one dies
        alone, and that one falls back."""
        lost = self._link.lost() & set(self._pictures)
        if not lost:
            return
        if len(lost) == 1 and lost <= self._suspects:
            one, picture = self._drop(lost.pop())
            self._keep(one, picture, {"blocks": [], "trouble": KILLED, "requests": [], "seconds": {}, "wait": 0.0})
            return
        self._suspects |= lost
        self._limit = max(1, len(lost) // 4)
        self._ready.extendleft(sorted(lost, reverse=True))

    def _send(self) -> None:
        while self._ready and len(self._link.in_flight) < self._limit:
            if self._suspects and self._ready[0] not in self._suspects:
                return  # those that may have killed the engine go alone
            page = self._ready.popleft()
            if page not in self._pictures:
                continue
            one, picture = self._pictures[page]
            regions = None
            if self._regions is not None:
                regions = self._found.setdefault(one.task.digest, self._regions(one.task)).get(picture.page, [])
            self._link.send(page, picture.size, picture.pixels, regions)

    def _settle(self) -> list[Ended]:
        """Give documents whose pages are all answered to a reader; return those that end here."""
        ended: list[Ended] = []
        for one in list(self._open.values()):
            if one.count is None or one.next < one.count or one.pending or one.assembling:
                continue
            one.assembling = True
            if self._finish is None:
                self._jobs.insert(0, AssembleTask(one.task))
            else:
                ended += self._end(one, self._finish(one.task, one.answers))
        return ended

    def _end(self, one: _Open, record: DocumentRecord) -> list[Ended]:
        del self._open[one.task.digest]
        self._found.pop(one.task.digest, None)
        for page in [page for page, (owner, _) in self._pictures.items() if owner is one]:
            self._drop(page)
        self._jobs[:] = [job for job in self._jobs if job.document is not one.task]
        return [(one.task, record)]

    def _schedule(self, waiting: deque[Task]) -> None:
        """Have pages rendered while the window has room, oldest document first."""
        while self._rendering + len(self._pictures) < self._window and self._bytes < _MOST_BYTES:
            one = next((one for one in self._open.values() if self._left(one)), None)
            if one is None:
                if not waiting:
                    return
                task = waiting.popleft()
                answers = Answers(Store(task.store, task.output).scratch(task.digest) / ANSWERS)
                # What failed before may not fail again.
                found = answers.read().items()
                known = {page for page, entry in found if not entry.get("reason") and not entry.get("trouble")}
                one = self._open[task.digest] = _Open(task, answers, known, done=len(known))
            pages: list[int] = []
            # The first task of a document finds out how many pages it has.
            last = one.count if one.count is not None else _CHUNK
            while one.next < last and len(pages) < _CHUNK:
                if one.next not in one.known:
                    pages.append(one.next)
                one.next += 1
            if one.count is None or pages:
                one.pending.update(pages)
                self._rendering += len(pages)
                self._jobs.append(PictureTask(one.task, pages))

    @staticmethod
    def _left(one: _Open) -> bool:
        """Return whether a document has pages to render; one that is being opened is not asked again."""
        return one.next < one.count if one.count is not None else one.next == 0
