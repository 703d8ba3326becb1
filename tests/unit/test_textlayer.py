"""Each page is read from where its text can be had."""

from __future__ import annotations

from pathlib import Path

import pypdfium2
import pytest
from reportlab.pdfgen.canvas import Canvas

from pdfquarry.textlayer import Source, examine
from pdfs import text_pdf
from samples import CORPUS, DIGITAL, PICTURED


def sources(path: Path) -> list[Source]:
    with pypdfium2.PdfDocument(path) as document:
        return [examine(page).source for page in document]


@pytest.mark.parametrize("name", DIGITAL)
def test_a_good_text_layer_is_used(name: str) -> None:
    assert set(sources(CORPUS / name)) == {Source.TEXT}


@pytest.mark.parametrize(("name", "pages"), PICTURED.items())
def test_scans_hidden_layers_outlines_and_layers_without_unicode_are_read_from_the_picture(
    name: str, pages: list[int]
) -> None:
    found = sources(CORPUS / name)
    assert [index for index, source in enumerate(found) if source is Source.PICTURE] == pages


def canvas_page(path: Path, draw) -> list[Source]:
    canvas = Canvas(str(path), pagesize=(595, 842), invariant=True)
    draw(canvas)
    canvas.showPage()
    canvas.save()
    return sources(path)


def test_an_empty_page_is_blank(tmp_path: Path) -> None:
    assert canvas_page(tmp_path / "a.pdf", lambda canvas: None) == [Source.BLANK]


def test_a_word_of_ink_is_no_blank_page_even_on_a_poster(tmp_path: Path) -> None:
    def outline(canvas: Canvas, size: float = 40) -> None:
        for letter in range(6):
            canvas.rect(1000 + letter * size, 2000, size / 2, size, stroke=1, fill=0)

    canvas = Canvas(str(tmp_path / "a.pdf"), pagesize=(5000, 5000))
    canvas.setLineWidth(4)
    outline(canvas)
    canvas.save()
    assert sources(tmp_path / "a.pdf") == [Source.PICTURE]


def test_a_page_of_tinted_paper_is_blank(tmp_path: Path) -> None:
    def tint(canvas: Canvas) -> None:
        canvas.setFillGray(0.7)
        canvas.rect(0, 0, 595, 842, stroke=0, fill=1)

    assert canvas_page(tmp_path / "a.pdf", tint) == [Source.BLANK]


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_a_page_with_a_few_words_is_text_however_it_is_turned(tmp_path: Path, rotation: int) -> None:
    def title(canvas: Canvas) -> None:
        canvas.setFont("Helvetica", 24)
        canvas.drawString(100, 500, "Part Two")

    canvas_page(tmp_path / "a.pdf", title)
    with pypdfium2.PdfDocument(tmp_path / "a.pdf") as document:
        document[0].set_rotation(rotation)
        document.save(tmp_path / "b.pdf")
    assert sources(tmp_path / "b.pdf") == [Source.TEXT]


def test_a_stamp_on_a_scan_does_not_make_it_text(tmp_path: Path) -> None:
    from reportlab.lib.utils import ImageReader

    with pypdfium2.PdfDocument(text_pdf(tmp_path / "t.pdf", "Scan")) as document:
        picture = document[0].render(scale=2).to_pil()

    def scan(canvas: Canvas) -> None:
        canvas.drawImage(ImageReader(picture), 0, 0, 595, 842)
        canvas.drawString(50, 10, "Downloaded from the library on 1 May, for personal use only, page 1 of 300")

    assert canvas_page(tmp_path / "a.pdf", scan) == [Source.PICTURE]


@pytest.mark.parametrize("size", [(0.1, 0.1), (0.1, 500), (200_000, 100), (14_400, 14_400)])
def test_pages_of_any_size_are_examined(tmp_path: Path, size: tuple[float, float]) -> None:
    assert len(sources(text_pdf(tmp_path / "a.pdf", "Odd", 1, size))) == 1
