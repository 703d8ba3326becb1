"""What an engine has answered for the pages of a document: a line of JSON each, until the document is assembled.

A job that is killed goes on from here, page by page; and a book's answers are on the disk and not in memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Answers:
    """The answers of one document.

    Args:
        path: their file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[int, dict[str, Any]]:
        """Return page (from 0) -> what was added for it last. A torn last line is no line."""
        found: dict[int, dict[str, Any]] = {}
        try:
            with open(self._path, "rb") as lines:
                for line in lines:
                    try:
                        entry = json.loads(line)
                        found[entry["page"]] = entry
                    except (ValueError, KeyError, TypeError):
                        continue
        except FileNotFoundError:
            pass
        return found

    def add(self, entry: dict[str, Any]) -> None:
        """Keep what is known of the page ``entry["page"]``."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "ab") as lines:
            # A line end first, should the last writer have died within its line.
            lines.write(b"\n" * (lines.tell() > 0) + json.dumps(entry).encode())
