"""The ways of reading a shard's documents: with the embedded engine, or with a model on its engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from pdfquarry import document
from pdfquarry.arch import shown
from pdfquarry.document import Task
from pdfquarry.engines import EngineJob, Machine
from pdfquarry.pages import Pages
from pdfquarry.plan import Document
from pdfquarry.readers import Death, Readers
from pdfquarry.records import DocumentRecord, EngineReport, Stage
from pdfquarry.regions import Regions
from pdfquarry.results import Results
from pdfquarry.settings import Settings

# Readers that one document may kill. Each death leaves out a page or sets a window's pages apart, so a document of a
# few bad pages ends as partial; one that goes on killing is given up.
MOST_DEATHS = 8


def tasks_of(
    planned: list[Document], paths: dict[str, list[str]], results: Results, output: str, settings: Settings
) -> list[Task]:
    """Return the tasks of planned documents, in their order; ``output`` is the digest that names their store."""
    dpi, layout = (0, "") if settings.engine == "embedded" else (settings.vlm.dpi, settings.detected)
    limits, pixels = settings.limits_digest(), settings.limits.page_pixels
    return [
        Task(one.digest, paths[one.digest], results.store, output, limits, settings.ocr_model, pixels, dpi, layout)
        for one in planned
    ]


class Way(Protocol):
    """Reads documents."""

    def run(self, tasks: list[Task]) -> Iterator[tuple[Task, DocumentRecord] | None]:
        """Yield documents as they end, and None in between. Raises EnvironmentFault when the engine can't be had."""

    def pages_done(self) -> int:
        """Return the pages that are read of documents that have not ended."""

    def report(self, fresh: list[DocumentRecord], seconds: float) -> EngineReport | None:
        """Return what the receipt says of the engine, after ``fresh`` were read in so many wall seconds."""


class ByEmbedded:
    """The embedded engine: a document is read by one reader from its first page to its last.

    Args:
        settings: of the run.
        workers: reader processes at most.
    """

    def __init__(self, settings: Settings, workers: int) -> None:
        limits = settings.limits
        self._readers: Readers[Task] = Readers(
            document.extract, workers, limits.page_seconds, limits.memory_mb, document.prepare
        )

    def run(self, tasks: list[Task]) -> Iterator[tuple[Task, DocumentRecord] | None]:
        """Yield documents as they end."""
        for ended in self._readers.run(tasks):
            if ended is not None:
                task, outcome = ended
                record = _after_death(task, outcome, tasks) if isinstance(outcome, Death) else outcome
                if record is not None:
                    yield task, record
            yield None

    def pages_done(self) -> int:
        """Return what the readers say of the documents in hand."""
        return sum(progress.done for _, progress in self._readers.progress())

    def report(self, fresh: list[DocumentRecord], seconds: float) -> EngineReport | None:
        """Return None: there is no engine beside the readers."""
        return None


class ByModel:
    """A model on its engine, page by page, with the regions that a detector has found or its own.

    Args:
        results: of the run.
        shard: to read.
        settings: of the run.
        workers: reader processes, which render and assemble.

    Raises EnvironmentFault: something is missing, and no GPU has been taken.
    """

    def __init__(self, results: Results, shard: str, settings: Settings, workers: int) -> None:
        log = results.root / "logs" / "engine" / f"{shard}.log"
        self._engine = EngineJob(settings.engine, settings, Machine.read(results), log)
        regions = Regions(results.regions, settings).read if settings.detected == "doclayout-yolo" else None
        self._pages = Pages(settings, workers, self._engine.link(), regions)

    def run(self, tasks: list[Task]) -> Iterator[tuple[Task, DocumentRecord] | None]:
        """Yield documents as they end; the GPU is given back at the end, whatever that is."""
        try:
            yield from self._pages.run(tasks)
        finally:
            self._engine.release()

    def pages_done(self) -> int:
        """Return the answered pages of documents under way."""
        return self._pages.pages_done()

    def report(self, fresh: list[DocumentRecord], seconds: float) -> EngineReport | None:
        """Return what the engine was and how fast it was."""
        return engine_report(self._engine, fresh, seconds)


def engine_report(engine: EngineJob, fresh: list[DocumentRecord], seconds: float) -> EngineReport:
    """Return what a receipt says of an engine, after ``fresh`` were read in ``seconds``, start included."""
    link = engine.link()
    pages = [page for record in fresh for page in record.pages]
    tokens_in, tokens_out = (sum(getattr(page, name) for page in pages) for name in ("tokens_in", "tokens_out"))
    busy = max(seconds - link.start_seconds, 1e-9)
    return EngineReport(
        kind=engine.kind,
        device=engine.device,
        python=engine.machine.python,
        versions={name: found for name, found in engine.machine.versions.items() if found},
        variables={name: value for name, value in shown(engine.variables).items() if value is not None},
        state={
            name: value for name, value in link.state.items() if name not in ("requests", "tokens_in", "tokens_out")
        },
        starts=link.starts,
        start_seconds=round(link.start_seconds, 3),
        pages_per_second=round(len(pages) / busy, 3),
        seconds_per_page=round(busy / max(len(pages), 1), 3),
        tokens_in_per_second=round(tokens_in / busy, 1),
        tokens_out_per_second=round(tokens_out / busy, 1),
    )


def _after_death(task: Task, death: Death, tasks: list[Task]) -> DocumentRecord | None:
    """Put a document whose reader died back, without what killed it; or return its record when it is given up."""
    progress = death.progress
    task.deaths += 1
    task.seconds += max(0.0, time.monotonic() - progress.at) if progress.at else 0.0
    where = f"page {progress.first + 1}: " if progress.first >= 0 else ""
    if progress.stage not in (Stage.READ, Stage.ANALYZE) or task.deaths >= MOST_DEATHS:
        return task.failed(death.reason, where + death.detail)
    if progress.first == progress.last:
        tasks.insert(0, replace(task, skip=task.skip | {progress.first: death.reason}))
    else:
        window = frozenset(range(progress.first, progress.last + 1))
        tasks.insert(0, replace(task, alone=task.alone | window))
    return None
