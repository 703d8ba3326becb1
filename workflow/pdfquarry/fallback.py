"""The text in a region of a page without a model: of the text layer, or by OCR where there is none."""

from __future__ import annotations

import ctypes
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

from pdfquarry import ocr
from pdfquarry.textlayer import Source

Box = tuple[float, float, float, float]


class Fallback:
    """Reads regions of one page.

    Args:
        page: an open page.
        source: where its text is.
        ocr_model: the model that reads pictures.
        most_pixels: pixels of the picture at most.
    """

    def __init__(self, page: pypdfium2.PdfPage, source: str, ocr_model: str, most_pixels: int) -> None:
        self._page, self._source = page, source
        self._ocr_model, self._most_pixels = ocr_model, most_pixels
        self._lines: list[ocr.Line] | None = None

    def text(self, box: Box) -> str:
        """Return the text whose characters, or lines, have their middle in ``box`` (shares of the page)."""
        return self._layer(box) if self._source == Source.TEXT else self._read(box)

    def _layer(self, box: Box) -> str:
        # The box is of the page as it is seen; PDFium's text is where it is before /Rotate.
        corners = []
        for x, y in ((box[0], box[1]), (box[2], box[3])):
            at_x, at_y = ctypes.c_double(), ctypes.c_double()
            where = (0, 0, 1000, 1000, 0, round(x * 1000), round(y * 1000))
            pdfium.FPDF_DeviceToPage(self._page, *where, ctypes.byref(at_x), ctypes.byref(at_y))
            corners.append((at_x.value, at_y.value))
        (x0, y0), (x1, y1) = corners
        textpage = self._page.get_textpage()
        try:
            text: str = textpage.get_text_bounded(min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))
        finally:
            textpage.close()
        return " ".join(text.split())

    def _read(self, box: Box) -> str:
        if self._lines is None:
            self._lines = ocr.read(self._page, self._ocr_model, self._most_pixels)
        width, height = self._page.get_size()
        inside = []
        for line in self._lines:
            x, y = (line.box[0] + line.box[2]) / 2 / width, (line.box[1] + line.box[3]) / 2 / height
            if box[0] <= x <= box[2] and box[1] <= y <= box[3]:
                inside.append(line)
        return " ".join(line.text for line in sorted(inside, key=lambda line: (line.box[1], line.box[0])))


def fill(blocks: list[dict[str, Any]], reader: Fallback) -> list[str]:
    """Give each block that a model failed on the text in its region; return what it failed by, for each.

    A block that has no text here, either, keeps what the model said.
    """
    troubles = []
    for block in blocks:
        trouble = block.pop("trouble", None)
        if trouble:
            troubles.append(str(trouble))
            x0, y0, x1, y1 = block["bbox"]
            text = reader.text((x0, y0, x1, y1))
            if text:
                block["content"] = text
                block["type"] = "text" if block["type"] in ("table", "equation") else block["type"]
    return troubles
