"""The sample corpus, and the truth about it."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "resources" / "corpus"
TRUTH = json.loads((ROOT / "tests" / "resources" / "truth.json").read_text(encoding="utf-8"))
DIGITAL = [
    "papers/two-column.pdf",
    "papers/formulas.pdf",
    "reports/tables.pdf",
    "reports/book.pdf",
    "languages/chinese.pdf",
    "odd/rotated.pdf",
    "odd/owner-password.pdf",
]
# File -> pages (from 0) whose text is to be read from the picture.
PICTURED = {
    "scans/letter.pdf": [0],
    "scans/mixed.pdf": [1],
    "scans/hidden-layer.pdf": [0],
    "languages/chinese-scan.pdf": [0],
    "languages/no-unicode-map.pdf": [0],
    "odd/outlined.pdf": [0],
}


def letters(text: str) -> str:
    """Return the letters and digits of a text, so that layout and markup don't count."""
    return re.sub(r"[\W_]+", "", text).lower()


def likeness(truth: str, text: str) -> float:
    """Return how much of ``truth`` stands in ``text`` in the same order, from 0 to 1."""
    wanted = letters(truth)
    matcher = difflib.SequenceMatcher(None, wanted, letters(text), autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks()) / len(wanted)
