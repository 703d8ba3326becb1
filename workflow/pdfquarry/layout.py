"""Layout of a shard by a detector: the regions of every page, before a model reads what is in them."""

from __future__ import annotations

import platform
import shutil
import time
from datetime import UTC, datetime

import filelock

from pdfquarry import files
from pdfquarry.answers import Answers
from pdfquarry.document import Task
from pdfquarry.engines import EngineJob, Machine
from pdfquarry.pages import Pages
from pdfquarry.plan import read_paths, read_shard
from pdfquarry.records import DocumentRecord, LayoutReceipt, PageRecord, State
from pdfquarry.regions import Regions
from pdfquarry.results import Results
from pdfquarry.settings import Settings
from pdfquarry.store import Store
from pdfquarry.ways import engine_report, tasks_of


def layout(results: Results, shard: str, settings: Settings, workers: int) -> LayoutReceipt:
    """Find the regions of what is left of a shard, write the receipt, and return it.

    A document that can't be opened has no regions; extraction says why.

    Raises EnvironmentFault when the detector can't be had, ResultsError as ``extract.extract``.
    """
    work = results.work(shard)
    work.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(work / "lock"):
        return _layout(results, shard, settings, workers)


def _layout(results: Results, shard: str, settings: Settings, workers: int) -> LayoutReceipt:
    started, clock = datetime.now(UTC), time.monotonic()
    regions, output = Regions(results.regions, settings), settings.layout_digest()
    paths = read_paths(results.paths(shard))
    live = [planned for planned in read_shard(results.shard(shard)) if planned.digest in paths]
    todo = sorted((p for p in live if regions.get(p.digest) is None), key=lambda planned: -planned.pages)
    tasks = tasks_of(todo, paths, results, output, settings)
    fresh: list[DocumentRecord] = []
    engine = None
    if tasks:
        log = results.root / "logs" / "engine" / f"{shard}-layout.log"
        job = EngineJob(settings.detected, settings, Machine.read(results), log)

        def finish(task: Task, answers: Answers) -> DocumentRecord:
            entries = answers.read()
            found = {page: entry["blocks"] for page, entry in entries.items() if "blocks" in entry}
            regions.put(task.digest, found)
            shutil.rmtree(Store(task.store, task.output).scratch(task.digest), ignore_errors=True)
            pages = [PageRecord(page=page + 1, engine=settings.detected) for page in sorted(found)]
            return DocumentRecord(digest=task.digest, state=State.DONE, pages=pages)

        pages = Pages(settings, workers, job.link(), finish=finish)
        try:
            fresh = [ended[1] for ended in pages.run(tasks) if ended is not None]
        finally:
            job.release()
        engine = engine_report(job, fresh, time.monotonic() - clock)
    receipt = LayoutReceipt(
        shard=shard,
        output=output,
        host=platform.node(),
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - clock, 3),
        documents=len(live),
        looked_at=len(fresh),
        pages=sum(len(record.pages) for record in fresh),
        failed=[record.digest for record in fresh if record.state is State.FAILED],
        engine_report=engine,
    )
    files.write(results.layout(shard), receipt.model_dump_json(indent=1, exclude_defaults=True) + "\n")
    return receipt
