"""The regions that a detector has found: one file a document, whole or not there, kept until its settings change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pdfquarry import files
from pdfquarry.document import Task
from pdfquarry.errors import ResultsError
from pdfquarry.settings import Settings

Found = dict[int, list[dict[str, Any]]]


class Regions:
    """The regions of documents, found with one set of detector settings.

    Args:
        root: the folder of all regions.
        settings: of the run.
    """

    def __init__(self, root: Path, settings: Settings) -> None:
        self._root = root / settings.layout_digest()

    def path(self, digest: str) -> Path:
        """Return the file of a document, there or not."""
        return self._root / digest[:2] / digest[2:4] / f"{digest}.json"

    def read(self, task: Task) -> Found:
        """Return page (from 0) -> regions of a document whose pages are about to be read.

        Raises ResultsError when they are gone.
        """
        found = self.get(task.digest)
        if found is None:
            name = self.path(task.digest)
            raise ResultsError(f"{name}: missing or damaged; delete the shard's layout.json, and it is made again")
        return found

    def get(self, digest: str) -> Found | None:
        """Return the regions of a document, or None when there are none or the file is damaged."""
        try:
            pages: list[list[Any]] = json.loads(self.path(digest).read_bytes())["pages"]
            return {int(page): regions for page, regions in pages}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, digest: str, found: Found) -> None:
        """Keep the regions of a document."""
        files.write(self.path(digest), json.dumps({"pages": sorted(found.items())}))
