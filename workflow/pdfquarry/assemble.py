"""From blocks to the files of a document: Markdown, MinerU's content list, DocVortex's middle JSON, pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import docvortex
from docvortex.schema import DocumentMetadata, ModelJson, Producer

from pdfquarry.content_list import content_list
from pdfquarry.embedded import Block, Pages
from pdfquarry.records import Reason
from pdfquarry.store import CONTENT_LIST, MARKDOWN, MIDDLE_JSON


def assemble(pages: Pages, folder: Path) -> int:
    """Write the files of a document into ``folder``; fill in each page's characters; return the number of pictures.

    A page that failed leaves a line in its place that says so, and the pages after it keep their numbers. A page
    whose blocks DocVortex can't render fails here.
    """
    try:
        result, markdown, content = _render(_blocks(pages))
    except ValueError:
        for index, blocks in enumerate(_blocks(pages)):
            # PDFium gives characters beyond the BMP as surrogate halves, now and then only one of them.
            pages.blocks[index] = _well_formed(blocks)
            try:
                _render([pages.blocks[index] or []])
            except ValueError:
                record = pages.records[index]
                record.reason, record.engine = Reason.ENGINE_REJECTED, "none"
        result, markdown, content = _render(_blocks(pages))
    items = content_list(content)
    for item in items:
        record = pages.records[item["page_idx"]]
        if not record.reason:
            record.characters += _characters(item)
    written = markdown.write(folder / MARKDOWN, overwrite=True)
    (folder / CONTENT_LIST).write_text(json.dumps(items, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / MIDDLE_JSON).write_text(result.middle_json.to_json(indent=None) + "\n", encoding="utf-8")
    return len(written.asset_paths)


def _blocks(pages: Pages) -> list[list[Block]]:
    return [
        _gap(record.page, record.reason) if record.reason else page or []
        for record, page in zip(pages.records, pages.blocks, strict=True)
    ]


def _render(blocks: list[list[Block]]) -> tuple[docvortex.DocumentResult, docvortex.RenderArtifact, dict[str, Any]]:
    producer = Producer(name="docvortex", version=docvortex.__version__)
    model = ModelJson(pages=blocks, page_index_map=[], metadata=DocumentMetadata(file_suffix="pdf", producer=producer))
    result = docvortex.postprocess_document(model)
    markdown = docvortex.render_artifact(result.middle_json, "markdown", assets=result.assets)
    content = docvortex.render_artifact(result.middle_json, "structured_content", assets=result.assets)
    structured = json.loads(content.content)
    _give_html(structured, result.middle_json.to_dict())
    return result, markdown, structured


def _give_html(structured: dict[str, Any], middle: dict[str, Any]) -> None:
    """Give tables of structured content, which has simple ones in Markdown, the HTML that MinerU's list has."""
    bodies = {
        (page["page_idx"], *block["bbox"]): part["content"]
        for page in middle["pages"]
        for block in page["blocks"]
        if block["type"] == "table"
        for part in block["content"]
        if part["type"] == "table_body" and isinstance(part.get("content"), str)
    }
    for page in structured["pages"]:
        for block in page["blocks"]:
            if block["type"] == "table" and block.get("bbox"):
                block["content"] = bodies.get((page["page_idx"], *block["bbox"]), block.get("content", ""))


def _gap(page: int, reason: str) -> list[Block]:
    text = f"[Page {page} could not be read: {reason}]"
    return [{"type": "text", "bbox": [0.0, 0.0, 1.0, 1.0], "angle": 0, "content": [{"type": "text", "content": text}]}]


def _characters(item: dict[str, Any]) -> int:
    texts = [item.get(key, "") for key in ("text", "table_body", "code_body")]
    return sum(map(len, texts)) + sum(map(len, item.get("list_items", [])))


def _well_formed(value: Any) -> Any:
    """Return ``value`` with surrogate pairs joined and lone halves replaced, in every string."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {key: _well_formed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_well_formed(inner) for inner in value]
    return value
