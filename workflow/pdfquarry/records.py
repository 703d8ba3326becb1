"""What is written about a document: its state, the reason of a failure, its pages, and a shard's receipt."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Stage(IntEnum):
    """What a reader is doing with a document."""

    OPEN = 0
    READ = 1  # looking at a page, and reading its picture where it has no text layer
    ANALYZE = 2  # finding the blocks of a window of pages
    ASSEMBLE = 3


class State(StrEnum):
    """The one state that each document of the corpus ends in."""

    DONE = "done"
    PARTIAL = "partial"  # some pages failed; each has a marked gap in the Markdown
    FAILED = "failed"
    DUPLICATE = "duplicate"  # the same bytes as a document before it; published like it


class Reason(StrEnum):
    """Why a document, or a page of it, failed."""

    ENCRYPTED = "encrypted"  # a password is needed to open it
    CORRUPT = "corrupt"  # it begins like a PDF, and PDFium can't open it or a page of it
    EMPTY = "empty"  # zero bytes
    NOT_A_PDF = "not_a_pdf"  # no PDF header in its first kilobyte
    NO_PAGES = "no_pages"  # it opens and has no page
    TIMEOUT = "timeout"  # no progress for limits.page_seconds
    CRASHED = "crashed"  # its reader died in native code
    OUT_OF_MEMORY = "out_of_memory"  # it wanted more than limits.memory_mb
    ENGINE_REJECTED = "engine_rejected"  # the engine refused the page with an error of its own
    OUTPUT_INVALID = "output_invalid"  # the page has ink, and neither the model nor anything else here found text
    VANISHED = "vanished"  # it was gone or had other bytes when its turn came; the next run plans it again
    UNREADABLE = "unreadable"  # the file system refused to give its bytes


# Failures of the moment, not of the document: the next plan gives such a document another turn.
PASSING = frozenset({Reason.VANISHED, Reason.UNREADABLE})


class Unopenable(Exception):
    """A document can't be opened, or nothing of it can be read; ``reason`` says why."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Record(BaseModel):
    """Base of what is written: unknown keys are refused, so that a damaged file is noticed."""

    model_config = ConfigDict(extra="forbid")


class PageRecord(Record):
    """One page: who read it, and what came out."""

    page: int = Field(ge=1, description="Number of the page in the PDF, from 1.")
    engine: str = Field(description="docvortex (text layer), ppocr (scan), vlm, or none (blank, or failed).")
    characters: int = Field(default=0, ge=0, description="Characters of text in its blocks.")
    reason: Reason | None = Field(default=None, description="Why the page failed; null when it did not.")
    layout: str = Field(default="", description="What found the regions for a model: vlm or doclayout-yolo.")
    fallback: list[str] = Field(
        default_factory=list,
        description="Why the text layer or OCR stands in for the model's answer: once for the page (its layout), or "
        "once for each block.",
    )
    tokens_in: int = Field(default=0, ge=0, description="Tokens of the prompts, pictures included.")
    tokens_out: int = Field(default=0, ge=0, description="Tokens of the answers.")
    retries: int = Field(default=0, ge=0, description="Requests made again with other sampling.")
    finish: dict[str, int] = Field(default_factory=dict, description="Last finish reasons, and how many requests each.")
    seconds: dict[str, float] = Field(
        default_factory=dict, description="Wall seconds of render, layout, content and wait (in the engine, in all)."
    )


class DocumentRecord(Record):
    """One document's outcome, as the journal, the store and the receipt hold it."""

    digest: str = Field(description="SHA-256 of its bytes, in hex.")
    state: State
    reason: Reason | None = Field(default=None, description="Why it failed; null when it did not.")
    detail: str = Field(default="", description="The failure in words.")
    bytes: int = Field(default=0, ge=0)
    pages: list[PageRecord] = Field(default_factory=list)
    images: int = Field(default=0, ge=0, description="Pictures published beside the Markdown.")
    seconds: float = Field(default=0, ge=0, description="Wall seconds in its reader, all attempts.")
    stages: dict[str, float] = Field(default_factory=dict, description="Wall seconds by stage, last attempt.")
    limits: str = Field(default="", description="Digest of the limits it was read under.")

    @property
    def characters(self) -> int:
        """Characters of text on all pages."""
        return sum(page.characters for page in self.pages)

    @property
    def engine(self) -> str:
        """The engines that read its pages, joined by ``+``, or an empty string."""
        return "+".join(sorted({page.engine for page in self.pages} - {"none"}))


class EngineReport(Record):
    """What the engine of a job was, and how fast. Speeds are of the wall time after its start."""

    kind: str
    device: str = Field(default="", description="The GPU, as its lock is named; cpu without one.")
    python: str = Field(description="The interpreter that it ran in.")
    versions: dict[str, str] = Field(description="Versions of what it needs, in that interpreter.")
    variables: dict[str, str] = Field(description="Environment variables that were set for it.")
    state: dict[str, Any] = Field(description="Its arguments, and which patches are active.")
    starts: int = Field(ge=0, description="How often it was started; 0 when another job had left it.")
    start_seconds: float = Field(ge=0, description="Wall seconds of waiting for it to be ready.")
    pages_per_second: float = Field(ge=0, description="Pages of the documents that this job ended.")
    seconds_per_page: float = Field(ge=0)
    tokens_in_per_second: float = Field(ge=0, description="Tokens of prompts, pictures included.")
    tokens_out_per_second: float = Field(ge=0)


class Receipt(Record):
    """What ``extract`` did for one shard: its only declared output."""

    shard: str
    output: str = Field(description="Digest of the settings that the output depends on; names the store.")
    limits: str = Field(description="Digest of the limits.")
    engine: str
    versions: dict[str, str] = Field(description="Versions of the packages that read the pages.")
    host: str
    workers: int = Field(ge=1)
    started: str = Field(description="UTC, ISO 8601.")
    seconds: float = Field(ge=0, description="Wall seconds of the job that wrote this receipt.")
    extracted: int = Field(ge=0, description="Documents that this job read; the others were in the store.")
    extracted_pages: int = Field(ge=0, description="Pages of those documents.")
    engine_report: EngineReport | None = Field(default=None, description="The engine, where a model read the pages.")
    documents: list[DocumentRecord]


class LayoutReceipt(Record):
    """What ``layout`` did for one shard: its only declared output."""

    shard: str
    output: str = Field(description="Digest of the settings that the regions depend on; names their store.")
    host: str
    started: str = Field(description="UTC, ISO 8601.")
    seconds: float = Field(ge=0, description="Wall seconds of the job.")
    documents: int = Field(ge=0, description="Documents of the shard.")
    looked_at: int = Field(ge=0, description="Documents that this job looked at; the others had their regions.")
    pages: int = Field(ge=0, description="Pages of those documents.")
    failed: list[str] = Field(default_factory=list, description="Digests of documents that could not be opened.")
    engine_report: EngineReport | None = Field(default=None, description="The detector.")
