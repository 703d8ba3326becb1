"""Files that are whole or not there: atomic writes, and tables of tab-separated values."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pdfquarry.errors import ResultsError


def write(path: Path, data: bytes | str) -> None:
    """Write ``path`` so that a reader, or a crash, sees the old file or the whole new one.

    Raises ResultsError when the folder can't be written (full disk, read-only, no permission).
    """
    if isinstance(data, str):
        data = data.encode()
    # A name of its own in the same folder: two writers never share it, and the rename stays inside one file system.
    aside = path.with_name(f".{path.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(aside, "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ResultsError(f"{path}: can't be written: {error.strerror or error}") from error


def write_if_changed(path: Path, data: bytes | str) -> bool:
    """Write ``path`` unless it holds ``data`` already, so that its mtime means a change; return whether it wrote."""
    if isinstance(data, str):
        data = data.encode()
    try:
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return False
    except OSError:
        pass
    write(path, data)
    return True


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of tab-separated values with a header. Cells must hold no tabs or line ends (see names.escape)."""
    lines = ["\t".join(columns)]
    lines.extend("\t".join(map(str, row)) for row in rows)
    return "\n".join(lines) + "\n"


def read_table(path: Path, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of a table that ``table`` made.

    Raises ResultsError when the file is missing, cut off, or has other columns.
    """
    try:
        with open(path, encoding="utf-8", newline="\n") as lines:
            if next(lines, "").rstrip("\n").split("\t") != list(columns):
                raise ResultsError(f"{path}: not a table with the columns {', '.join(columns)}; delete it to plan anew")
            for number, line in enumerate(lines, start=2):
                row = line.rstrip("\n").split("\t")
                if len(row) != len(columns) or not line.endswith("\n"):
                    raise ResultsError(f"{path}: line {number} is damaged; delete the file to plan anew")
                yield row
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path}: can't be read: {error}") from error
