"""MinerU's blocks of a page as DocVortex's raw blocks, so that one renderer serves all engines."""

from __future__ import annotations

import re
from typing import Any

Block = dict[str, Any]

# MinerU's block types by what DocVortex calls them. Others keep their name; captions and footnotes find what they
# belong to by their place.
_NAMES = {
    "image_caption": "caption",
    "table_caption": "caption",
    "code_caption": "caption",
    "image_footnote": "footnote",
    "table_footnote": "footnote",
    "list_item": "text",
    "phonetic": "text",
    "unknown": "image",
}
# Containers whose parts are blocks of their own.
_DROPPED = {"equation_block"}
# Types whose content is a string; all others hold spans.
_STRINGS = {"table", "equation", "code", "image", "chart", "image_block"}
_INLINE_FORMULA = re.compile(r"\\\((.+?)\\\)", re.DOTALL)


def raw_blocks(blocks: list[Block], first_page: bool) -> list[Block]:
    """Return a page's blocks for DocVortex's renderer.

    Args:
        blocks: MinerU's, as mineru-vl-utils gives them after its own post-processing: type, bbox in shares of the
            page, angle, content (tables as HTML, formulas as LaTeX), merge_prev.
        first_page: whether it is the first page of the document, where MinerU's unclassified ``title`` may be the
            document's; elsewhere it is a section's.
    """
    found: list[Block] = []
    titled = not first_page or any(block["type"] == "doc_title" for block in blocks)
    for block in blocks:
        kind = _NAMES.get(block["type"], block["type"])
        if kind in _DROPPED:
            continue
        if kind == "title":
            kind, titled = ("paragraph_title" if titled else "doc_title"), True
        content = block.get("content") or ""
        raw: Block = {"type": kind, "bbox": list(block["bbox"]), "angle": block.get("angle") or 0}
        if kind == "equation":
            content = _without_fence(content)
        raw["content"] = content if kind in _STRINGS else spans(content)
        if block.get("merge_prev"):
            raw["continues_prev"] = True
        found.append(raw)
    return _with_numbers(found)


def _with_numbers(blocks: list[Block]) -> list[Block]:
    """Return the blocks with each formula's number in it, as its tag; a number without a formula is text."""
    numbers = [block for block in blocks if block["type"] == "formula_number"]
    formulas = [block for block in blocks if block["type"] == "equation"]
    for number in numbers:
        middle = (number["bbox"][1] + number["bbox"][3]) / 2
        beside = [
            one for one in formulas if one["bbox"][1] <= middle <= one["bbox"][3] and "\\tag" not in one["content"]
        ]
        if beside:
            text = "".join(span["content"] for span in number["content"]).strip("() ")
            beside[0]["content"] += f" \\tag{{{text}}}"
            blocks = [block for block in blocks if block is not number]
        else:
            number["type"] = "text"
    return blocks


def spans(text: str) -> list[Block]:
    """Return a text with formulas between ``\\(`` and ``\\)`` as DocVortex's inline spans."""
    found: list[Block] = []
    for index, part in enumerate(_INLINE_FORMULA.split(text)):
        if index % 2 and part.strip():
            found.append({"type": "equation_inline", "content": part.strip()})
        elif not index % 2 and part:
            found.append({"type": "text", "content": part})
    return found


def _without_fence(latex: str) -> str:
    """Return a formula without the ``\\[`` and ``\\]`` around it."""
    body = latex.strip()
    return body[2:-2].strip() if body.startswith("\\[") and body.endswith("\\]") else body
