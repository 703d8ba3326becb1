"""One document, inside a reader: from its bytes to its folder in the store."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pdfquarry.answers import Answers
from pdfquarry.errors import ResultsError
from pdfquarry.readers import Beat
from pdfquarry.records import DocumentRecord, Reason, Stage, State, Unopenable
from pdfquarry.store import Store, write_record

if TYPE_CHECKING:
    from pdfquarry.embedded import Pages

# The file of a document's answers in its scratch folder.
ANSWERS = "answers.jsonl"


@dataclass(slots=True)
class Task:
    """A document to extract, and what earlier attempts taught about it.

    Args:
        digest: SHA-256 that its bytes must have, in hex.
        paths: where it may be found; any with the right bytes serves.
        store: the folder of all stores.
        output: digest of the output settings.
        limits: digest of the limits.
        ocr_model: the model that reads pictures.
        most_pixels: pixels of a page's picture.
        dpi: resolution of pages for a model.
        layout: what finds the regions for a model; empty without one.
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
    ocr_model: str
    most_pixels: int
    dpi: int = 0
    layout: str = ""
    skip: dict[int, Reason] = field(default_factory=dict)
    alone: frozenset[int] = frozenset()
    deaths: int = 0
    seconds: float = 0.0

    def failed(self, reason: Reason, detail: str) -> DocumentRecord:
        """Return the record of this document as failed."""
        return DocumentRecord(
            digest=self.digest,
            state=State.FAILED,
            reason=reason,
            detail=detail,
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
    """Extract a document with the embedded engine into the store and return its record; a failed one has that only.

    Raises ResultsError when the store can't be written. Any other error is taken for the document's: one that makes a
    library raise what it should not must not end the shard.
    """
    return _guarded(task, beat, _read)


def assemble_answers(task: Task, beat: Beat) -> DocumentRecord:
    """Make a document of what a model answered for its pages (``answers``); otherwise as ``extract``."""
    return _guarded(task, beat, _from_answers)


def _guarded(task: Task, beat: Beat, read: Callable[[Task, bytes, Beat], Pages]) -> DocumentRecord:
    started = time.perf_counter()
    try:
        data = read_bytes(task)
        return _commit(task, data, read(task, data, beat), beat, started)
    except Unopenable as error:
        failed = task.failed(error.reason, str(error))
    except (MemoryError, ResultsError):
        raise
    except Exception as error:
        traceback.print_exc()
        failed = task.failed(Reason.ENGINE_REJECTED, f"{type(error).__name__}: {error}"[:300])
    return failed.model_copy(update={"seconds": round(task.seconds + time.perf_counter() - started, 3)})


def _read(task: Task, data: bytes, beat: Beat) -> Pages:
    # The engine is loaded by prepare() in a reader, and not at all in the job that imports this module.
    from pdfquarry import embedded

    stand_ins = embedded.StandIns(Store(task.store, task.output).scratch(task.digest))
    engine = embedded.EmbeddedEngine(task.ocr_model, task.most_pixels, stand_ins, beat)
    return engine.read(data, task.skip, task.alone)


def _from_answers(task: Task, data: bytes, beat: Beat) -> Pages:
    from pdfquarry import embedded, model_pages

    scratch = Store(task.store, task.output).scratch(task.digest)
    stand_ins = embedded.StandIns(scratch)
    engine = embedded.EmbeddedEngine(task.ocr_model, task.most_pixels, stand_ins, beat)
    return model_pages.read(task, data, Answers(scratch / ANSWERS).read(), engine, beat)


def _commit(task: Task, data: bytes, pages: Pages, beat: Beat, started: float) -> DocumentRecord:
    """Write a document into the store and return its record. Raises Unopenable when no page of it could be read."""
    from pdfquarry.assemble import assemble

    if all(record.reason for record in pages.records):
        raise Unopenable(pages.records[0].reason or Reason.CORRUPT, "none of its pages could be read")
    begun = time.perf_counter()
    beat(Stage.ASSEMBLE, done=len(pages.records))
    with Store(task.store, task.output).writing(task.digest) as folder:
        images = assemble(pages, folder)
        failed = [record for record in pages.records if record.reason]
        stages = pages.stages | {"assemble": time.perf_counter() - begun}
        record = DocumentRecord(
            digest=task.digest,
            state=State.PARTIAL if failed else State.DONE,
            reason=failed[0].reason if failed else None,
            detail=f"{len(failed)} of {len(pages.records)} pages failed" if failed else "",
            bytes=len(data),
            pages=pages.records,
            images=images,
            seconds=round(task.seconds + time.perf_counter() - started, 3),
            stages={name: round(seconds, 4) for name, seconds in stages.items()},
            limits=task.limits,
        )
        write_record(folder, record)
    return record


def read_bytes(task: Task) -> bytes:
    """Return the document's bytes, from any of its paths that still has them. Raises Unopenable when none has."""
    reason, detail = Reason.VANISHED, "no path in the plan has these bytes any more"
    for path in task.paths:
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            reason, detail = Reason.UNREADABLE, f"the file system gives no bytes: {error.strerror}"
            continue
        if hashlib.sha256(data).hexdigest() == task.digest:
            return data
    raise Unopenable(reason, detail)
