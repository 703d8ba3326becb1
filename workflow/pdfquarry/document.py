"""One document, inside a reader: from its bytes to its folder in the store."""

from __future__ import annotations

import hashlib
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from pdfquarry.readers import Beat
from pdfquarry.records import DocumentRecord, Reason, State
from pdfquarry.store import Store, write_record

# Stages that a beat names; between them is EmbeddedEngine.READ and ANALYZE.
OPEN, ASSEMBLE = 0, 3


@dataclass(slots=True)
class Task:
    """A document to extract, and what earlier attempts taught about it.

    Args:
        digest: SHA-256 that its bytes must have, in hex.
        paths: where it may be found; any with the right bytes serves.
        store: the folder of all stores.
        output: digest of the output settings.
        limits: digest of the limits.
        most_pixels: pixels of a page's picture.
        skip: pages (from 0) that killed a reader, and why.
        alone: pages of a window that killed a reader.
        deaths: readers it has killed.
        seconds: wall seconds of earlier attempts.
    """

    digest: str
    paths: list[str]
    store: Path
    output: str
    limits: str
    most_pixels: int
    skip: dict[int, Reason] = field(default_factory=dict)
    alone: frozenset[int] = frozenset()
    deaths: int = 0
    seconds: float = 0.0

    def failed(self, reason: Reason, detail: str, size: int = 0) -> DocumentRecord:
        """Return the record of this document as failed."""
        return DocumentRecord(
            digest=self.digest,
            state=State.FAILED,
            reason=reason,
            detail=detail,
            bytes=size,
            seconds=round(self.seconds, 3),
            limits=self.limits,
        )


def prepare() -> None:
    """Load the engine in a new reader, before its memory is limited and the first document's deadline runs."""
    from loguru import logger

    from pdfquarry import assemble, embedded, ocr  # noqa: F401

    logger.remove()  # DocVortex logs each picture; what matters is in the records
    embedded.blocks_of(ocr.set_page([], 100, 100))  # it imports the most of itself on the first page


def extract(task: Task, beat: Beat) -> DocumentRecord:
    """Extract a document into the store and return its record; a failed one has a record only.

    Raises ResultsError when the store can't be written.
    """
    from pdfquarry import embedded
    from pdfquarry.assemble import assemble

    started = time.perf_counter()
    data, refusal = _bytes(task)
    if data is None:
        gone = "no path in the plan has these bytes any more"
        return task.failed(refusal, gone if refusal is Reason.VANISHED else "the file system gives no bytes")
    store = Store(task.store, task.output)
    engine = embedded.EmbeddedEngine(task.most_pixels, embedded.StandIns(store.scratch(task.digest)), beat)
    try:
        pages = engine.read(data, task.skip, task.alone)
    except embedded.Unopenable as error:
        task.seconds += time.perf_counter() - started
        shutil.rmtree(store.scratch(task.digest), ignore_errors=True)
        return task.failed(error.reason, str(error), len(data))
    failed = [record for record in pages.records if record.reason]
    if len(failed) == len(pages.records):
        task.seconds += time.perf_counter() - started
        record = task.failed(failed[0].reason or Reason.CORRUPT, "none of its pages could be read", len(data))
        return record.model_copy(update={"pages": pages.records})
    begun = time.perf_counter()
    beat(ASSEMBLE, done=len(pages.records))
    with store.writing(task.digest) as folder:
        images = assemble(pages, folder)
        now = time.perf_counter()
        stages = pages.stages | {"assemble": now - begun}
        record = DocumentRecord(
            digest=task.digest,
            state=State.PARTIAL if failed else State.DONE,
            reason=failed[0].reason if failed else None,
            detail=f"{len(failed)} of {len(pages.records)} pages failed" if failed else "",
            bytes=len(data),
            pages=pages.records,
            images=images,
            seconds=round(task.seconds + now - started, 3),
            stages={name: round(seconds, 4) for name, seconds in stages.items()},
            limits=task.limits,
        )
        write_record(folder, record)
    return record


def _bytes(task: Task) -> tuple[bytes | None, Reason]:
    """Return the document's bytes, from any of its paths that still has them, or the reason why there are none."""
    reason = Reason.VANISHED
    for path in task.paths:
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            continue
        except OSError:
            reason = Reason.UNREADABLE
            continue
        if hashlib.sha256(data).hexdigest() == task.digest:
            return data, reason
    return None, reason
