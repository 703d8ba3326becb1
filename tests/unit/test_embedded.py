"""The embedded engine: never less than DocVortex alone, and every page accounted for."""

from __future__ import annotations

import json
from pathlib import Path

import docvortex
import pypdfium2
import pytest

from pdfquarry import embedded
from pdfquarry.assemble import assemble
from pdfquarry.embedded import EmbeddedEngine, Pages, StandIns, open_pdf
from pdfquarry.records import Reason, Unopenable
from pdfs import text_pdf
from samples import CORPUS, DIGITAL, PICTURED, TRUTH, letters, likeness


def read(
    data: bytes, folder: Path, skip: dict[int, Reason] | None = None, alone: frozenset[int] = frozenset()
) -> Pages:
    engine = EmbeddedEngine("tiny", 25_000_000, StandIns(folder / "stand-ins"), lambda *told: None)
    return engine.read(data, skip or {}, alone)


def markdown(pages: Pages, folder: Path) -> str:
    assemble(pages, folder)
    return (folder / "document.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DIGITAL)
def test_digital_documents_come_out_exactly_as_from_docvortex_alone(name: str, tmp_path: Path) -> None:
    data = (CORPUS / name).read_bytes()
    alone = docvortex.parse(data, file_suffix="pdf", parse_mode="txt")
    artifact = docvortex.render_artifact(alone.middle_json, "markdown", assets=alone.assets)
    text = markdown(read(data, tmp_path), tmp_path)
    assert text.encode() == artifact.content
    assert {path.name for path in (tmp_path / "images").glob("*")} == {Path(asset).name for asset in artifact.assets}


@pytest.mark.parametrize("name", [name for name in DIGITAL if name in TRUTH])
def test_headings_and_sentences_of_digital_documents_are_there(name: str, tmp_path: Path) -> None:
    text = markdown(read((CORPUS / name).read_bytes(), tmp_path), tmp_path)
    heads = [letters(line) for line in text.splitlines() if line.startswith("#")]
    expected = TRUTH[name]["headings"]
    assert sum(letters(heading) in heads for heading in expected) >= 0.6 * len(expected)
    missing = [sentence for sentence in TRUTH[name]["sentences"] if likeness(sentence, text) < 0.95]
    assert not missing


@pytest.mark.parametrize(("name", "pages"), PICTURED.items())
def test_scanned_pages_come_out_as_their_text_in_reading_order(name: str, pages: list[int], tmp_path: Path) -> None:
    found = read((CORPUS / name).read_bytes(), tmp_path)
    text = markdown(found, tmp_path)
    engines = ["ppocr" if index in pages else "docvortex" for index in range(len(found.records))]
    assert [record.engine for record in found.records] == engines
    items = json.loads((tmp_path / "content_list.json").read_text(encoding="utf-8"))
    for page in pages:
        on_page = "".join(item.get("text", "") for item in items if item["page_idx"] == page)
        assert likeness(TRUTH[name][str(page)], on_page) > 0.97
        assert likeness(TRUTH[name][str(page)], text) > 0.97
        assert found.records[page].characters > 0


def test_a_second_attempt_reads_no_picture_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (CORPUS / "scans/letter.pdf").read_bytes()
    first = markdown(read(data, tmp_path), tmp_path)
    monkeypatch.setattr(embedded.ocr, "read", None)
    assert markdown(read(data, tmp_path), tmp_path) == first


def test_a_failed_page_leaves_a_marked_gap_and_the_others_their_numbers(tmp_path: Path) -> None:
    data = text_pdf(tmp_path / "t.pdf", "Gap", 4).read_bytes()
    pages = read(data, tmp_path, skip={1: Reason.TIMEOUT})
    text = markdown(pages, tmp_path)
    marks = ("[1.10]", "[Page 2 could not be read: timeout]", "[3.10]", "[4.10]")
    parts = [text.index(mark) for mark in marks]
    assert parts == sorted(parts) and "[2.10]" not in text
    items = json.loads((tmp_path / "content_list.json").read_text(encoding="utf-8"))
    assert sorted({item["page_idx"] for item in items}) == [0, 1, 2, 3]
    assert [record.reason for record in pages.records] == [None, Reason.TIMEOUT, None, None]
    assert pages.records[1].characters == 0 and pages.records[1].engine == "none"


def test_documents_longer_than_a_window_keep_all_pages_in_order(tmp_path: Path) -> None:
    count = embedded.WINDOW * 2 + 3
    text = markdown(read(text_pdf(tmp_path / "t.pdf", "Long", count).read_bytes(), tmp_path), tmp_path)
    found = [text.find(f"[{page + 1}.10]") for page in range(count)]
    assert found == sorted(found) and found[0] >= 0


def test_a_page_that_docvortex_refuses_costs_itself_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = embedded.blocks_of

    def refuse(data: bytes) -> list:
        with pypdfium2.PdfDocument(data) as document:
            texts = [page.get_textpage().get_text_range() for page in document]
        if any("part 2" in text for text in texts):
            raise RuntimeError("refused")
        return real(data)

    monkeypatch.setattr(embedded, "blocks_of", refuse)
    pages = read(text_pdf(tmp_path / "t.pdf", "Refused", 3).read_bytes(), tmp_path)
    assert [record.reason for record in pages.records] == [None, Reason.ENGINE_REJECTED, None]
    assert [record.engine for record in pages.records] == ["docvortex", "none", "docvortex"]
    assert "[3.10]" in markdown(pages, tmp_path)


def test_surrogate_halves_in_a_text_layer_do_not_stop_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = embedded.blocks_of

    def broken(data: bytes) -> list:
        pages = real(data)
        pages[0][0]["content"] = [{"type": "text", "content": "pair \ud835\udc00, half \ud835 end"}]
        return pages

    monkeypatch.setattr(embedded, "blocks_of", broken)
    text = markdown(read(text_pdf(tmp_path / "t.pdf", "Halves").read_bytes(), tmp_path), tmp_path)
    assert "pair \U0001d400, half \ufffd end" in text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("odd/empty.pdf", Reason.EMPTY),
        ("odd/encrypted.pdf", Reason.ENCRYPTED),
        ("odd/corrupt.pdf", Reason.CORRUPT),
        ("odd/not-a-pdf.pdf", Reason.NOT_A_PDF),
    ],
)
def test_documents_that_can_not_be_opened_say_why(name: str, reason: Reason) -> None:
    with pytest.raises(Unopenable) as caught:
        open_pdf((CORPUS / name).read_bytes())
    assert caught.value.reason is reason


def test_junk_before_and_after_a_pdf_is_no_obstacle(tmp_path: Path) -> None:
    data = text_pdf(tmp_path / "t.pdf", "Junk").read_bytes()
    for variant in (b"\r\n\x00junk\n" + data, data + b"\x00" * 2000, data.replace(b"%%EOF", b"")):
        assert "[1.10]" in markdown(read(variant, tmp_path), tmp_path)
