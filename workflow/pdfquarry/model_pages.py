"""A document's pages from a model's answers, with the embedded engine where the model had none that can be used."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pypdfium2
from docvortex.document.pdf.images import load_images_from_pdf_core
from docvortex.document.pdf.visuals import attach_visual_block_images

from pdfquarry.blocks import raw_blocks
from pdfquarry.document import Task
from pdfquarry.embedded import PICTURED, Block, EmbeddedEngine, Pages, open_pdf
from pdfquarry.fallback import Fallback, fill
from pdfquarry.readers import Beat
from pdfquarry.records import PageRecord, Reason, Stage
from pdfquarry.textlayer import Source


def read(task: Task, data: bytes, answers: dict[int, dict[str, Any]], engine: EmbeddedEngine, beat: Beat) -> Pages:
    """Return the pages of a document.

    Args:
        task: the document.
        data: its bytes.
        answers: page (from 0) -> its entry (``pages.entry_of``).
        engine: reads the pages that the model found no regions on.
        beat: says which page is being worked on.

    Raises Unopenable.
    """
    document = open_pdf(data)
    try:
        count = len(document)
        pages = Pages([None] * count, [PageRecord(page=index + 1, engine="none") for index in range(count)])
        pages.stages = {"render": sum(entry.get("seconds", {}).get("render", 0.0) for entry in answers.values())}
        unread = []
        for index in range(count):
            entry = answers.get(index, {})
            record = pages.records[index] = _record(index, entry, task.layout)
            if index in task.skip:
                record.reason = task.skip[index]
            if record.reason or entry.get("source") == Source.BLANK:
                pages.blocks[index] = []
            elif record.fallback:
                unread.append(index)
            else:
                beat(Stage.ANALYZE, index, index, index)
                blocks = _blocks(document, index, entry, task, record)
                if any(block["content"] or block["type"] in PICTURED for block in blocks):
                    _attach_pictures(data, index, blocks)
                    pages.blocks[index] = blocks
                else:  # regions, and nothing in any of them
                    record.fallback.append("empty")
                    unread.append(index)
    finally:
        document.close()
    if unread:
        _read_by(engine, data, task, unread, pages)
    return pages


def _record(index: int, entry: dict[str, Any], layout: str) -> PageRecord:
    requests = entry.get("requests", [])
    return PageRecord(
        page=index + 1,
        engine="vlm" if requests else "none",
        layout=layout if requests else "",
        reason=Reason(entry["reason"]) if entry.get("reason") else None,
        fallback=[entry["trouble"]] if entry.get("trouble") else [],
        tokens_in=sum(one["tokens_in"] for one in requests),
        tokens_out=sum(one["tokens_out"] for one in requests),
        retries=sum(one["tries"] - 1 for one in requests),
        finish=dict(Counter(one["finish"] for one in requests)),
        seconds={name: round(seconds, 3) for name, seconds in entry.get("seconds", {}).items()},
    )


def _blocks(
    document: pypdfium2.PdfDocument, index: int, entry: dict[str, Any], task: Task, record: PageRecord
) -> list[Block]:
    blocks = entry["blocks"]
    if any(block.get("trouble") for block in blocks):
        page = document[index]
        try:
            record.fallback = fill(blocks, Fallback(page, entry["source"], task.ocr_model, task.most_pixels))
        finally:
            page.close()
    return raw_blocks(blocks, index == 0)


def _attach_pictures(data: bytes, index: int, blocks: list[Block]) -> None:
    """Cut the pictures of visual blocks out of the rendered page."""
    if any(block["type"] in PICTURED for block in blocks):
        pictures = load_images_from_pdf_core(data, start_page_id=index, end_page_id=index)
        attach_visual_block_images([blocks], pictures, index)
        for picture in pictures:
            picture["img_pil"].close()


def _read_by(engine: EmbeddedEngine, data: bytes, task: Task, unread: list[int], pages: Pages) -> None:
    """Let the embedded engine read pages; one that has nothing, though there is ink, has failed."""
    found = engine.read(data, task.skip, task.alone, frozenset(unread))
    pages.stages |= found.stages
    for index in unread:
        record, theirs = pages.records[index], found.records[index]
        pages.blocks[index], record.reason = found.blocks[index], theirs.reason
        record.engine = theirs.engine
        if not record.reason and not pages.blocks[index]:
            record.reason, record.engine = Reason.OUTPUT_INVALID, "none"
