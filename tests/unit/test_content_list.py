"""The content list has MinerU's keys."""

from __future__ import annotations

from pdfquarry.content_list import content_list


def block(kind: str, **keys: object) -> dict:
    return {"type": kind, "bbox": [0.1, 0.2, 0.3, 0.4], **keys}


def test_each_kind_of_block_gets_the_keys_that_mineru_gives_it() -> None:
    blocks = [
        block("doc_title", content="Title"),
        block("paragraph_title", content="Part", level=3),
        block("text", content="Words."),
        block("table", content="<table></table>", image_source="images/t.jpg", captions=[{"content": "Table 1"}]),
        block("chart", content="", image_source="images/c.jpg", footnotes=[{"content": "Note"}]),
        block("equation", content="x^2", image_source="images/e.jpg"),
        block("list", content="- one\n- two\n"),
        block("code", content="print()", sub_type="algorithm"),
        block("page_number", content="7"),
    ]
    place = {"bbox": [100, 200, 300, 400], "page_idx": 4}
    assert content_list({"pages": [{"page_idx": 4, "blocks": blocks}]}) == [
        {"type": "text", "text": "Title", "text_level": 1, **place},
        {"type": "text", "text": "Part", "text_level": 3, **place},
        {"type": "text", "text": "Words.", **place},
        {
            "type": "table",
            "img_path": "images/t.jpg",
            "table_caption": ["Table 1"],
            "table_footnote": [],
            "table_body": "<table></table>",
            **place,
        },
        {"type": "image", "img_path": "images/c.jpg", "image_caption": [], "image_footnote": ["Note"], **place},
        {"type": "equation", "img_path": "images/e.jpg", "text": "x^2", "text_format": "latex", **place},
        {"type": "list", "sub_type": "text", "list_items": ["- one", "- two"], **place},
        {
            "type": "code",
            "sub_type": "algorithm",
            "code_body": "print()",
            "code_caption": [],
            "code_footnote": [],
            **place,
        },
        {"type": "page_number", "text": "7", **place},
    ]
