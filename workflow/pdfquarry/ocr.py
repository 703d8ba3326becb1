"""Reading pictures of pages: PP-OCRv6 finds lines, and a page is set from them that has a text layer.

DocVortex takes its evidence (columns, headings by size, paragraphs) from a text layer, so a scanned page becomes a
page with the same text in the same places, and one way of assembling documents serves both.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import pypdfium2
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas

# Resolution of the picture that is read; the detector scales the longer side to 1600 pixels at most.
_DPI = 150
# Lines that the model is less sure of are not text (PaddleOCR's own limit).
_CONFIDENCE = 0.5
# A detected line's box is taller than the type in it: size and baseline as shares of the height, measured on
# Helvetica and Droid Sans set at 8 to 24 pt and read back at 150 dpi.
_SIZE, _BASELINE = 0.72, 0.24


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text and its upright box (left, top, right, bottom) in points from the page's top left corner."""

    text: str
    box: tuple[float, float, float, float]


@cache
def _engine(model: str) -> Any:
    """Load a model once a process, with one thread: as many readers run as there are cores."""
    from faster_paddle import OcrEngine

    return OcrEngine(model_size=model, threads=1)


def read(page: pypdfium2.PdfPage, model: str, most_pixels: int) -> list[Line]:
    """Return the lines on the picture of ``page``.

    Args:
        page: an open page.
        model: tiny or small (Settings.ocr_model).
        most_pixels: pixels of the picture at most; a larger page is rendered at a lower resolution.
    """
    width, height = page.get_size()
    scale = min(_DPI / 72, (most_pixels / max(width * height, 1e-6)) ** 0.5)
    bitmap = page.render(scale=scale)
    encoded = io.BytesIO()
    try:
        bitmap.to_pil().convert("RGB").save(encoded, "BMP")  # no time is spent on packing it
    finally:
        bitmap.close()
    lines = []
    for found in _engine(model).ocr(encoded.getvalue())["bounds"].values():
        if found["confidence"] >= _CONFIDENCE and found["text"].strip():
            left, top, right, bottom = (side / scale for side in (*found["topLeftCoord"], *found["bottomRightCoord"]))
            lines.append(Line(found["text"], (left, top, right, bottom)))
    return lines


def set_page(lines: list[Line], width: float, height: float) -> bytes:
    """Return a PDF of one page of ``width`` x ``height`` points with ``lines`` as visible text."""
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(width, height), invariant=True)
    for line in lines:
        left, top, right, bottom = line.box
        text = "".join(char for char in line.text if char.isprintable())
        size = max(1.0, (bottom - top) * _SIZE)
        font = _font(text)
        natural = pdfmetrics.stringWidth(text, font, size)
        writer = canvas.beginText()
        writer.setFont(font, size)
        writer.setHorizScale(min(max(100 * (right - left) / max(natural, 1e-6), 20), 400))
        writer.setTextOrigin(left, height - bottom + (bottom - top) * _BASELINE)
        writer.textOut(text)
        canvas.drawText(writer)
    canvas.showPage()
    canvas.save()
    return out.getvalue()


def _font(text: str) -> str:
    """Return a font that has ``text``: Helvetica, or the fallback font that DocVortex ships for PDFium."""
    try:
        text.encode("cp1252")
        return "Helvetica"
    except UnicodeEncodeError:
        return _fallback()


@cache
def _fallback() -> str:
    font = resources.files("docvortex") / "resources" / "fonts" / "DroidSansFallbackFull.ttf"
    with resources.as_file(font) as path:
        pdfmetrics.registerFont(TTFont("DroidSansFallback", str(path)))
    return "DroidSansFallback"
