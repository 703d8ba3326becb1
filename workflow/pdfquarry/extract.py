"""Extraction of a shard: every document of it ends in the receipt, whatever it does to its reader.

Finished documents are in the store and in the journal before they count, so a job that is killed loses what was in
flight at most, and the next one goes on from there.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import filelock
from pydantic import ValidationError

from pdfquarry import files
from pdfquarry.environment import versions
from pdfquarry.plan import read_paths, read_shard
from pdfquarry.records import PASSING, DocumentRecord, EngineReport, Receipt, State
from pdfquarry.results import Results
from pdfquarry.settings import Settings
from pdfquarry.store import Store
from pdfquarry.ways import ByEmbedded, ByModel, Way, tasks_of


class Journal:
    """What has been finished of a shard: one line of JSON a document, on disk before it counts.

    Args:
        path: the journal's file.
        output, limits: digests of the settings in force; lines of others are history.
    """

    def __init__(self, path: Path, output: str, limits: str) -> None:
        self._path, self._output, self._limits = path, output, limits

    def read(self) -> dict[str, DocumentRecord]:
        """Return digest -> record of the documents finished under these settings. A torn last line is no line."""
        found: dict[str, DocumentRecord] = {}
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return found
        for line in lines:
            try:
                entry = json.loads(line)
                record = DocumentRecord.model_validate(entry["record"])
            except (ValueError, KeyError, TypeError, ValidationError):
                continue
            if entry["output"] == self._output and (record.state is State.DONE or record.limits == self._limits):
                found[record.digest] = record
            else:
                found.pop(record.digest, None)
        return found

    def add(self, record: DocumentRecord) -> None:
        """Append a record."""
        line = json.dumps({"output": self._output, "record": record.model_dump(mode="json", exclude_defaults=True)})
        with open(self._path, "ab") as journal:
            # A line end first, should the last writer have died within its line.
            journal.write(b"\n" * (journal.tell() > 0) + line.encode())
            journal.flush()
            os.fsync(journal.fileno())


@dataclass(slots=True)
class Count:
    """What progress.json says of a shard: documents and pages, in all and finished, and failures."""

    documents: int = 0
    pages: int = 0
    documents_done: int = 0
    pages_done: float = 0
    failed: int = 0


def extract(results: Results, shard: str, settings: Settings, workers: int) -> Receipt:
    """Extract what is left of a shard, write its receipt, and return it.

    Raises ResultsError for a damaged plan or a results folder that can't be written, EnvironmentFault when no reader
    starts.
    """
    work = results.work(shard)
    work.mkdir(parents=True, exist_ok=True)
    # A job that outlived its Snakemake may still be at it: the next one waits, and finds its work done.
    with filelock.FileLock(work / "lock"):
        return _extract(results, shard, settings, workers)


def _extract(results: Results, shard: str, settings: Settings, workers: int) -> Receipt:
    started, clock = datetime.now(UTC), time.monotonic()
    output, limits = settings.output_digest(), settings.limits_digest()
    documents = read_shard(results.shard(shard))
    paths = read_paths(results.paths(shard))
    live = [planned for planned in documents if planned.digest in paths]
    journal = Journal(results.work(shard) / "journal.jsonl", output, limits)
    store = Store(results.store, output)
    finished = _finished(journal, store, [planned.digest for planned in live], limits)

    pages = {planned.digest: max(1, planned.pages) for planned in live}
    count = Count(len(live), sum(pages.values()))
    for digest, record in finished.items():
        _count(count, record, pages[digest])
    # The longest first, so that the end of the shard is not one reader busy with a book.
    todo = sorted((p for p in live if p.digest not in finished), key=lambda planned: -planned.pages)
    model = settings.engine != "embedded"
    tasks = tasks_of(todo, paths, results, output, settings)
    report = _Progress(results.work(shard) / "progress.json", count)
    fresh: list[DocumentRecord] = []
    engine: EngineReport | None = None
    if tasks:
        way: Way = (
            ByModel(results, shard, settings, workers) if model else ByEmbedded(settings, min(workers, len(tasks)))
        )
        try:
            for ended in way.run(tasks):
                if ended is not None:
                    task, ending = ended
                    journal.add(ending)
                    shutil.rmtree(store.scratch(task.digest), ignore_errors=True)
                    fresh.append(ending)
                    finished[task.digest] = ending
                    _count(count, ending, pages[task.digest])
                report(way.pages_done())
        finally:
            report(0, last=True)
        engine = way.report(fresh, time.monotonic() - clock)
    report(0, last=True)

    passing = [(r.digest,) for r in finished.values() if r.state is State.FAILED and r.reason in PASSING]
    files.write_if_changed(results.passing(shard), files.table(("digest",), passing))
    receipt = Receipt(
        shard=shard,
        output=output,
        limits=limits,
        engine=settings.engine,
        versions=versions(),
        host=platform.node(),
        workers=workers,
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - clock, 3),
        extracted=len(fresh),
        extracted_pages=sum(len(record.pages) for record in fresh),
        engine_report=engine,
        documents=[finished[planned.digest] for planned in live],
    )
    files.write(results.receipt(shard), receipt.model_dump_json(indent=1, exclude_defaults=True) + "\n")
    return receipt


def _finished(journal: Journal, store: Store, digests: list[str], limits: str) -> dict[str, DocumentRecord]:
    """Return what need not be done again: what the store has, and failures under the same limits."""
    finished: dict[str, DocumentRecord] = {}
    failures = {d: r for d, r in journal.read().items() if r.state is State.FAILED and r.reason not in PASSING}
    for digest in digests:
        record = store.get(digest) or failures.get(digest)
        if record and (record.state is State.DONE or record.limits == limits):
            finished[digest] = record
    return finished


def _count(count: Count, record: DocumentRecord, pages: int) -> None:
    count.documents_done += 1
    count.pages_done += pages
    count.failed += record.state is State.FAILED


class _Progress:
    """Writes progress.json about once a second, for the display of the whole run."""

    def __init__(self, path: Path, count: Count, every: float = 1.0) -> None:
        self._path, self._count, self._every, self._next = path, count, every, 0.0

    def __call__(self, in_flight: int, last: bool = False) -> None:
        if last or time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            count = replace(self._count, pages_done=self._count.pages_done + in_flight)
            state = {name: getattr(count, name) for name in Count.__slots__} | {"updated": time.time()}
            files.write(self._path, json.dumps(state))
