"""A picture of a page becomes a page with the same text in the same places."""

from __future__ import annotations

import io

import pypdfium2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

from pdfquarry import ocr
from pdfquarry.ocr import Line
from samples import CORPUS, TRUTH, letters, likeness

MOST = 25_000_000


def text_of(page: bytes) -> str:
    with pypdfium2.PdfDocument(page) as document:
        return document[0].get_textpage().get_text_range()


@pytest.mark.parametrize("model", ["tiny", "small"])
def test_both_models_read_a_scan(model: str) -> None:
    with pypdfium2.PdfDocument(CORPUS / "scans/hidden-layer.pdf") as document:
        text = " ".join(line.text for line in ocr.read(document[0], model, MOST))
    assert likeness(TRUTH["scans/hidden-layer.pdf"]["0"], text) > 0.97


@pytest.mark.parametrize(
    "text",
    ["Plain words, 1234.", "Ærø, „naïve“ façade", "łódź žluťoučký őrült", "山间石桥", "東京都の石", "Ωμέγα и камень"],
)
def test_text_in_any_script_comes_back_from_the_page_that_is_set(text: str) -> None:
    assert letters(text_of(ocr.set_page([Line(text, (50, 100, 450, 124))], 595, 842))) == letters(text)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=40), st.tuples(*[st.floats(0, 2000)] * 4), st.floats(0.1, 20_000), st.floats(0.1, 20_000))
def test_a_page_can_be_set_from_any_text_and_box(
    text: str, box: tuple[float, float, float, float], width: float, height: float
) -> None:
    with pypdfium2.PdfDocument(ocr.set_page([Line(text, box)], width, height)) as document:
        assert len(document) == 1


def test_lines_lie_where_they_were_read() -> None:
    with pypdfium2.PdfDocument(CORPUS / "scans/letter.pdf") as document:
        page = document[0]
        width, height = page.get_size()
        lines = ocr.read(page, "tiny", MOST)
    with pypdfium2.PdfDocument(ocr.set_page(lines, width, height)) as document:
        again = ocr.read(document[0], "tiny", MOST)
    matched = 0
    for line in lines:
        for other in again:
            if letters(line.text) == letters(other.text):
                assert max(abs(a - b) for a, b in zip(line.box, other.box, strict=True)) < 12
                matched += 1
    assert matched >= 0.8 * len(lines)


def test_a_giant_page_is_read_within_the_pixels_it_may_take(tmp_path) -> None:
    canvas = Canvas(str(tmp_path / "a.pdf"), pagesize=(14_400, 14_400))
    canvas.setFont("Helvetica", 1000)
    canvas.drawString(2000, 7000, "Giant page")
    canvas.save()
    with pypdfium2.PdfDocument(tmp_path / "a.pdf") as document:
        assert "giantpage" in letters(" ".join(line.text for line in ocr.read(document[0], "tiny", 1_000_000)))


def test_a_picture_without_text_gives_no_lines(tmp_path) -> None:
    canvas = Canvas(str(tmp_path / "a.pdf"), pagesize=(300, 300))
    ramp = Image.linear_gradient("L")
    buffer = io.BytesIO()
    ramp.save(buffer, "PNG")
    canvas.drawImage(ImageReader(io.BytesIO(buffer.getvalue())), 0, 0, 300, 300)
    canvas.save()
    with pypdfium2.PdfDocument(tmp_path / "a.pdf") as document:
        assert ocr.read(document[0], "tiny", MOST) == []
