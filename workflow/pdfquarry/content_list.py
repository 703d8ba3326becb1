"""MinerU's content list: a flat JSON list of a document's blocks in reading order.

The keys are those of MinerU 2.5 and later (``content_list.json``): ``type``, ``text`` and ``text_level`` for text and
headings, ``img_path`` with captions and footnotes for pictures, ``table_body`` as HTML, ``text_format: latex`` for
formulas, ``list_items`` for lists; ``bbox`` in thousandths of the page from its top left corner; ``page_idx`` from 0.
"""

from __future__ import annotations

from typing import Any

_HEADINGS = {"doc_title", "paragraph_title"}
_LISTS = {"list", "index", "ref_text"}
_VISUALS = {"image", "chart", "table", "code"}


def content_list(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the content list of a document in DocVortex's structured content."""
    return [_item(block, page["page_idx"]) for page in content["pages"] for block in page["blocks"]]


def _item(block: dict[str, Any], page_idx: int) -> dict[str, Any]:
    kind, text = block["type"], block.get("content", "")
    item: dict[str, Any]
    if kind in _HEADINGS:
        item = {"type": "text", "text": text, "text_level": 1 if kind == "doc_title" else block.get("level", 2)}
    elif kind in _VISUALS:
        name = "image" if kind == "chart" else kind
        item = {"type": name}
        if kind == "code":
            item |= {"sub_type": block.get("sub_type", "code"), "code_body": text}
        else:
            item["img_path"] = block.get("image_source", "")
        item[f"{name}_caption"] = [caption["content"] for caption in block.get("captions", [])]
        item[f"{name}_footnote"] = [footnote["content"] for footnote in block.get("footnotes", [])]
        if kind == "table":
            item["table_body"] = text
    elif kind == "equation":
        item = {"type": "equation", "img_path": block.get("image_source", ""), "text": text, "text_format": "latex"}
    elif kind in _LISTS and "\n" in text:
        items = [line for line in text.split("\n") if line.strip()]
        item = {"type": "list", "sub_type": "ref_text" if kind == "ref_text" else "text", "list_items": items}
    else:
        item = {"type": "text" if kind in _LISTS else kind, "text": text}
    if block.get("bbox"):
        item["bbox"] = [round(value * 1000) for value in block["bbox"]]
    item["page_idx"] = page_idx
    return item
