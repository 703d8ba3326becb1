"""Can a page's text layer be used, or must its picture be read? Decided for each page on its own."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import StrEnum

import numpy
import pypdfium2
import pypdfium2.raw as pdfium

# Characters looked at on a page; a share is what counts, and 400 give it within 3 %.
_SAMPLE = 400
# Above this share of characters without a Unicode value the layer is noise (embedded-facts: DocVortex then makes
# pictures of the text).
_UNMAPPED = 0.10
# Under so many readable characters a layer may be a page number or a library's stamp on a scan: look at the page.
_FEW = 400
# Share of the page that one picture of a scan covers.
_COVERED = 0.6
# Dark pixels outside the text's boxes, at 50 dpi, that are ink and not dust: a word in 11 pt has about 70. A page that
# is looked at in vain costs a third of a second.
_INK = 20
Box = tuple[float, float, float, float]
_INVISIBLE = {pdfium.FPDF_TEXTRENDERMODE_INVISIBLE, pdfium.FPDF_TEXTRENDERMODE_CLIP}


class Source(StrEnum):
    """Where a page's text is to come from."""

    TEXT = "text"
    PICTURE = "picture"
    BLANK = "blank"


@dataclass(frozen=True, slots=True)
class TextLayer:
    """A page's text layer: its source of text, and how many characters a reader of the layer would see."""

    source: Source
    characters: int


def examine(page: pypdfium2.PdfPage) -> TextLayer:
    """Return what the text layer of ``page`` is worth.

    The layer is used unless more than a tenth of its visible characters have no Unicode value, or it is short and the
    page shows ink that it doesn't account for (a scan, an invisible OCR layer, text drawn as outlines).

    Raises PdfiumError when the page can't be read.
    """
    textpage = page.get_textpage()
    try:
        readable, unmapped, boxes = _count(textpage)
    finally:
        textpage.close()
    if unmapped > _UNMAPPED:
        return TextLayer(Source.PICTURE, 0)
    if readable >= _FEW:
        return TextLayer(Source.TEXT, readable)
    if readable and _largest_picture(page) < _COVERED:
        return TextLayer(Source.PICTURE if readable < 50 and _ink(page, boxes) else Source.TEXT, readable)
    if _ink(page, boxes):
        return TextLayer(Source.PICTURE, readable)
    return TextLayer(Source.TEXT if readable else Source.BLANK, readable)


def _count(textpage: pypdfium2.PdfTextPage) -> tuple[int, float, list[Box]]:
    """Return (visible characters with a Unicode value, share of visible ones without, boxes in points if few)."""
    total = textpage.count_chars()
    sample = range(0, total, max(1, total // _SAMPLE))
    visible = unmapped = looked = 0
    boxes = []
    for index in sample:
        code = pdfium.FPDFText_GetUnicode(textpage, index)
        if code in (0x20, 0xA0, 0x0D, 0x0A, 0x09) or pdfium.FPDFText_IsGenerated(textpage, index) == 1:
            continue
        looked += 1
        owner = pdfium.FPDFText_GetTextObject(textpage, index)
        if owner and pdfium.FPDFTextObj_GetTextRenderMode(owner) in _INVISIBLE:
            continue
        visible += 1
        # Private-use and replacement characters have a value and no meaning.
        if pdfium.FPDFText_HasUnicodeMapError(textpage, index) == 1 or code in (0, 0xFFFD) or 0xE000 <= code <= 0xF8FF:
            unmapped += 1
        elif total <= _FEW:
            boxes.append(textpage.get_charbox(index, loose=True))
    if not looked:
        return 0, 0.0, boxes
    readable = round(total * (visible - unmapped) / len(sample))
    return readable, unmapped / visible if visible else 0.0, boxes


def _largest_picture(page: pypdfium2.PdfPage) -> float:
    """Return the largest share of the page that one picture covers."""
    left, bottom, right, top = page.get_bbox()
    area = max((right - left) * (top - bottom), 1e-6)
    largest = 0.0
    for found in page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=3):
        x0, y0, x1, y1 = found.get_bounds()
        width, height = min(x1, right) - max(x0, left), min(y1, top) - max(y0, bottom)
        largest = max(largest, max(width, 0) * max(height, 0) / area)
    return largest


def _ink(page: pypdfium2.PdfPage, boxes: list[Box]) -> bool:
    """Return whether the page shows ink outside the boxes of its text."""
    scale = min(50 / 72, 2000 / max(page.get_size()))
    bitmap = page.render(scale=scale, grayscale=True)
    try:
        grey = bitmap.to_numpy().astype(numpy.int16)
    finally:
        bitmap.close()
    # Paper need not be white, so ink is what differs from the page's commonest shade.
    paper = numpy.bincount(grey.ravel(), minlength=256).argmax()
    ink = abs(grey - paper) > 64
    for box in boxes:
        x0, y0, x1, y1 = _to_pixels(page, box, scale)
        ink[max(y0 - 1, 0) : y1 + 2, max(x0 - 1, 0) : x1 + 2] = False
    return bool(ink.sum() > _INK)


def _to_pixels(page: pypdfium2.PdfPage, box: Box, scale: float) -> tuple[int, int, int, int]:
    """Return a box in points, counted from the bottom left, as left, top, right, bottom in pixels of the rendering."""
    width, height = (max(1, int(side * scale + 0.5)) for side in page.get_size())
    corners = []
    for x, y in ((box[0], box[1]), (box[2], box[3])):
        pixel_x, pixel_y = ctypes.c_int(), ctypes.c_int()
        pdfium.FPDF_PageToDevice(page, 0, 0, width, height, 0, x, y, ctypes.byref(pixel_x), ctypes.byref(pixel_y))
        corners.append((pixel_x.value, pixel_y.value))
    (ax, ay), (bx, by) = corners
    return min(ax, bx), min(ay, by), max(ax, bx), max(ay, by)
