"""The store of extracted documents: one folder for each digest and output settings, whole or not there.

Snakemake doesn't know it, so a failed or killed job can't make it delete one. A folder gets its name last, by a
rename, after its files are on disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from pdfquarry import files
from pdfquarry.errors import ResultsError
from pdfquarry.records import DocumentRecord

# The files of a document.
RECORD, MARKDOWN, CONTENT_LIST, MIDDLE_JSON = "document.json", "document.md", "content_list.json", "middle.json"
IMAGES = "images"


class Store:
    """The documents that were extracted with one set of output settings.

    Args:
        root: the folder of all stores.
        output: digest of the output settings (Settings.output_digest).
    """

    def __init__(self, root: Path, output: str) -> None:
        self._root = root / output

    def folder(self, digest: str) -> Path:
        """Return the folder of a document, there or not. Two levels keep folders below some thousand entries."""
        return self._root / digest[:2] / digest[2:4] / digest

    def scratch(self, digest: str) -> Path:
        """Return the folder for what attempts at a document leave for the next; gone when it is committed."""
        return self._root / "scratch" / digest

    def get(self, digest: str) -> DocumentRecord | None:
        """Return the record of a document, or None when it isn't here or its record is damaged."""
        try:
            return DocumentRecord.model_validate_json((self.folder(digest) / RECORD).read_bytes())
        except (OSError, ValidationError):
            return None

    @contextmanager
    def writing(self, digest: str) -> Iterator[Path]:
        """Give a folder to write a document into; it takes its place in the store when the block ends well.

        Raises ResultsError when the store can't be written.
        """
        final, scratch = self.folder(digest), self.scratch(digest)
        aside = scratch / "writing"
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            yield aside
            _settle(aside)
            final.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(final, ignore_errors=True)
            os.replace(aside, final)
        except OSError as error:
            raise ResultsError(f"{final}: can't be written: {error.strerror or error}") from error
        shutil.rmtree(scratch, ignore_errors=True)


def write_record(folder: Path, record: DocumentRecord) -> None:
    """Write a document's record into its folder."""
    files.write(folder / RECORD, record.model_dump_json(indent=1, exclude_defaults=True) + "\n")


def _settle(folder: Path) -> None:
    """Put a folder's files on the disk, and make them read-only: the published tree links to them."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
            path.chmod(0o444)
