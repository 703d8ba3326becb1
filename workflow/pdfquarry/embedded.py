"""The embedded engine: a PDF's bytes to pages of blocks, on the CPU.

For each page: is there a usable text layer (``textlayer``)? If not, its picture is read (``ocr``) and a page with the
same text stands in for it. DocVortex then finds the blocks of a window of pages at once, since it tells headers,
titles and body text apart by comparing pages.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pypdfium2
from docvortex.analyzers.native import PdfModel
from docvortex.document.pdf import PDFDocument
from docvortex.document.pdf.constants import MODEL_JSON_VISUAL_BLOCK_TYPES
from docvortex.document.pdf.images import load_images_from_pdf_core
from docvortex.document.pdf.visuals import attach_visual_block_images

from pdfquarry import files, ocr
from pdfquarry.records import PageRecord, Reason, Stage, Unopenable
from pdfquarry.textlayer import Source, examine

# Pages that DocVortex sees together. Longer documents are read in windows, so that memory is bounded by this and a
# page that kills its reader costs the others of its window their comparison at most.
WINDOW = 64
# Blocks whose picture is cut out; an image_block becomes an image then.
PICTURED = MODEL_JSON_VISUAL_BLOCK_TYPES | {"image_block"}

Block = dict[str, Any]


@dataclass(slots=True)
class Pages:
    """What was read: the blocks of each page (None where it failed), a record a page, seconds by stage."""

    blocks: list[list[Block] | None]
    records: list[PageRecord]
    stages: dict[str, float] = field(default_factory=lambda: {"examine": 0.0, "ocr": 0.0, "analyze": 0.0})


def open_pdf(data: bytes) -> pypdfium2.PdfDocument:
    """Return the open document. Raises Unopenable: empty, not a PDF, encrypted, corrupt, or without pages."""
    if not data:
        raise Unopenable(Reason.EMPTY, "zero bytes")
    if b"%PDF-" not in data[:1024]:
        raise Unopenable(Reason.NOT_A_PDF, f"no PDF header; it begins with {data[:16]!r}")
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise Unopenable(Reason.ENCRYPTED, "a password is needed to open it") from None
        raise Unopenable(Reason.CORRUPT, f"PDFium can't open it: {error}") from None
    if len(document) == 0:
        raise Unopenable(Reason.NO_PAGES, "it opens and has no page")
    return document


class EmbeddedEngine:
    """Reads documents page by page.

    Args:
        ocr_model: the model that reads pictures (Settings.ocr_model).
        most_pixels: pixels of a page's picture (Settings.limits.page_pixels).
        stand_ins: returns the stand-in of a page read before this attempt, or None; and keeps a new one.
        beat: called as beat(stage, first, last, done) before each step; Stage.READ and Stage.ANALYZE are half of a
            page's work each.
    """

    def __init__(
        self, ocr_model: str, most_pixels: int, stand_ins: StandIns, beat: Callable[[int, int, int, int], None]
    ) -> None:
        self._ocr_model, self._most_pixels = ocr_model, most_pixels
        self._stand_ins = stand_ins
        self._beat = beat

    def read(
        self, data: bytes, skip: dict[int, Reason], alone: frozenset[int], only: frozenset[int] | None = None
    ) -> Pages:
        """Return the pages of a PDF.

        Args:
            data: the PDF's bytes.
            skip: pages (from 0) not to touch, and why: they killed a reader.
            alone: pages to analyze one at a time, since their window killed a reader.
            only: the pages to read; None reads all.

        Raises Unopenable.
        """
        document = open_pdf(data)
        try:
            count = len(document)
            pages = Pages([None] * count, [PageRecord(page=index + 1, engine="none") for index in range(count)])
            stand_ins: dict[int, bytes] = {}
            usable = []
            for index in range(count) if only is None else sorted(only):
                if index in skip:
                    pages.records[index].reason = skip[index]
                    continue
                self._beat(Stage.READ, index, index, index // 2)
                try:
                    stand_in = self._examine(document, index, pages)
                except (pypdfium2.PdfiumError, ValueError):
                    pages.records[index].reason = Reason.CORRUPT
                    continue
                usable.append(index)
                if stand_in is not None:
                    stand_ins[index] = stand_in
            for window in _windows(usable, alone):
                self._analyze(document, data, window, stand_ins, pages)
            return pages
        finally:
            document.close()

    def _examine(self, document: pypdfium2.PdfDocument, index: int, pages: Pages) -> bytes | None:
        """Return the stand-in of a page whose picture must be read, or None for one with a text layer."""
        started = time.perf_counter()
        page = document[index]
        try:
            layer = examine(page)
            pages.stages["examine"] += time.perf_counter() - started
            if layer.source is not Source.BLANK:
                pages.records[index].engine = "docvortex"
            if layer.source is not Source.PICTURE:
                return None
            started = time.perf_counter()
            stand_in = self._stand_ins.get(index)
            if stand_in is None:
                lines = ocr.read(page, self._ocr_model, self._most_pixels)
                # A picture without more text than the layer has stays: DocVortex publishes it as a picture.
                text = sum(len(line.text) for line in lines)
                stand_in = ocr.set_page(lines, *page.get_size()) if text > layer.characters else b""
                self._stand_ins.put(index, stand_in)
            pages.stages["ocr"] += time.perf_counter() - started
            if not stand_in:
                return None
            pages.records[index].engine = "ppocr"
            return stand_in
        finally:
            page.close()

    def _analyze(
        self,
        document: pypdfium2.PdfDocument,
        data: bytes,
        window: list[int],
        stand_ins: dict[int, bytes],
        pages: Pages,
    ) -> None:
        """Fill in the blocks of a window; when DocVortex refuses it, page by page, so that a page costs itself only."""
        started = time.perf_counter()
        done = sum(page is not None for page in pages.blocks)
        self._beat(Stage.ANALYZE, window[0], window[-1], (len(document) + done) // 2)
        try:
            whole = len(window) == len(document) and not stand_ins
            found = blocks_of(data if whole else _extract(document, window, stand_ins))
        except MemoryError:
            raise
        except Exception:  # whatever a hostile page makes the library raise
            pages.stages["analyze"] += time.perf_counter() - started
            if len(window) == 1:
                record = pages.records[window[0]]
                record.reason, record.engine = Reason.ENGINE_REJECTED, "none"
                return
            for index in window:
                self._analyze(document, data, [index], stand_ins, pages)
            return
        for index, blocks in zip(window, found, strict=True):
            pages.blocks[index] = blocks
        pages.stages["analyze"] += time.perf_counter() - started


class StandIns:
    """Pages set from what OCR read, kept on disk, so that a second attempt at a document reads no picture twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, index: int) -> bytes | None:
        """Return the stand-in of page ``index`` (from 0); empty bytes when there is no text; None when unknown."""
        try:
            return (self._folder / f"{index}.pdf").read_bytes()
        except FileNotFoundError:
            return None

    def put(self, index: int, data: bytes) -> None:
        """Keep a stand-in."""
        files.write(self._folder / f"{index}.pdf", data)


def blocks_of(data: bytes) -> list[list[Block]]:
    """Return DocVortex's raw blocks for each page of a PDF, with pictures cut out of the rendered page."""
    with PDFDocument(data) as document:
        pages: list[list[Block]] = PdfModel().predict(document)
    for index, blocks in enumerate(pages):
        if any(block.get("type") in PICTURED for block in blocks):
            pictures = load_images_from_pdf_core(data, start_page_id=index, end_page_id=index)
            attach_visual_block_images([blocks], pictures, index)
            for picture in pictures:
                picture["img_pil"].close()
    return pages


def _extract(document: pypdfium2.PdfDocument, window: Iterable[int], stand_ins: dict[int, bytes]) -> bytes:
    """Return a PDF of the window's pages, each scanned one replaced by its stand-in."""
    extract = pypdfium2.PdfDocument.new()
    try:
        for index in window:
            if index in stand_ins:
                with pypdfium2.PdfDocument(stand_ins[index]) as stand_in:
                    extract.import_pages(stand_in)
            else:
                extract.import_pages(document, [index])
        out = io.BytesIO()
        extract.save(out)
        return out.getvalue()
    finally:
        extract.close()


def _windows(indices: list[int], alone: frozenset[int]) -> list[list[int]]:
    """Return the pages in windows: WINDOW at a time, and those of ``alone`` each in one of its own."""
    windows: list[list[int]] = []
    for index in indices:
        if index in alone or not windows or len(windows[-1]) == WINDOW or windows[-1][-1] in alone:
            windows.append([])
        windows[-1].append(index)
    return windows
