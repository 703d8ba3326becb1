"""MinerU's blocks come out through the same renderer as everything else, whatever their type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pdfquarry.assemble import assemble
from pdfquarry.blocks import raw_blocks, spans
from pdfquarry.embedded import Pages
from pdfquarry.records import PageRecord

# mineru-vl-utils 2.0.7's structs.BLOCK_TYPES, but for image_block, which becomes an image when its picture is cut out.
TYPES = """text title doc_title paragraph_title table equation formula_number code algorithm aside_text ref_text index
phonetic list_item caption table_caption image_caption code_caption footnote table_footnote image_footnote header footer
page_number page_footnote image chart list equation_block unknown""".split()  # noqa: SIM905  a list is read in one look


def block(kind: str, content: str | None, top: float = 0.1, **more: Any) -> dict[str, Any]:
    return {"type": kind, "bbox": [0.1, top, 0.9, top + 0.05], "angle": 0, "content": content} | more


def render(folder: Path, *pages: list[dict[str, Any]]) -> str:
    raw = [raw_blocks(page, index == 0) for index, page in enumerate(pages)]
    records = [PageRecord(page=index + 1, engine="vlm") for index in range(len(pages))]
    folder.mkdir(exist_ok=True)
    assemble(Pages(raw, records), folder)  # type: ignore[arg-type]
    assert not any(record.reason for record in records)
    return (folder / "document.md").read_text()


def test_every_type_of_block_is_rendered_and_no_text_is_lost(tmp_path: Path) -> None:
    silent = {"equation_block", "image", "chart", "unknown", "list", "table", "aside_text"}
    running = {"header", "footer", "page_number"}  # left out of Markdown, kept in the content list
    for kind in TYPES:
        content = f"stone {kind.replace('_', '')}"
        text = render(tmp_path, [block("text", "before", 0.05), block(kind, content, 0.2), block("text", "after", 0.4)])
        assert "before" in text and "after" in text
        if kind not in silent | running:
            assert content in text, kind
        if kind in running:
            assert content in (tmp_path / "content_list.json").read_text()


def test_the_first_title_of_a_document_is_its_own_and_others_are_sections(tmp_path: Path) -> None:
    first = [block("title", "The quarry"), block("title", "Benches", 0.3)]
    text = render(tmp_path, first, [block("title", "Ledgers")])
    assert [line for line in text.splitlines() if line.startswith("#")] == ["# The quarry", "## Benches", "## Ledgers"]
    text = render(tmp_path, [block("doc_title", "The quarry"), block("title", "Benches", 0.3)])
    assert "# The quarry" in text and "## Benches" in text


def test_a_paragraph_that_goes_on_is_one(tmp_path: Path) -> None:
    text = render(tmp_path, [block("text", "It goes"), block("text", "on here.", 0.2, merge_prev=True)])
    assert "It goes on here." in text


def test_a_table_is_one_and_its_caption_stays_with_it(tmp_path: Path) -> None:
    html = "<table><tr><td>a</td><td>b</td></tr><tr><td>1</td><td>2</td></tr></table>"
    render(tmp_path, [block("table_caption", "Table 1. Weights"), block("table", html, 0.16)])
    (item,) = json.loads((tmp_path / "content_list.json").read_text())
    assert (
        item["type"] == "table" and item["table_caption"] == ["Table 1. Weights"] and "<td>2</td>" in item["table_body"]
    )


def test_a_formula_carries_its_number_and_an_odd_number_is_text(tmp_path: Path) -> None:
    formula = block("equation", "\\[\nE = mc^2\n\\]", 0.3)
    text = render(tmp_path, [formula, block("formula_number", "(7)", 0.3), block("formula_number", "(9)", 0.6)])
    assert "E = mc^2 \\tag{7}" in text and "(9)" in text


def test_formulas_in_a_line_are_formulas(tmp_path: Path) -> None:
    assert spans("a \\(x^2\\) b") == [
        {"type": "text", "content": "a "},
        {"type": "equation_inline", "content": "x^2"},
        {"type": "text", "content": " b"},
    ]
    assert "$x^2$" in render(tmp_path, [block("text", "a \\(x^2\\) b")])


def test_markup_in_a_text_is_data(tmp_path: Path) -> None:
    text = render(tmp_path, [block("text", "<script>alert(1)</script> and [a](javascript:b)")])
    assert "<script>" not in text
