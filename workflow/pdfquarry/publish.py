"""Publishing: the tree of Markdown for people, and the table of documents for programs.

The files of the tree are hard links to the store where the file system has them, so publishing again costs a look at
each document and no copying. They are read-only, since a change would reach the store as well.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pandas
from pydantic import ValidationError

from pdfquarry import files, names
from pdfquarry.errors import ResultsError
from pdfquarry.plan import CORPUS_COLUMNS
from pdfquarry.records import DocumentRecord, Reason, Receipt, State
from pdfquarry.results import Results
from pdfquarry.store import CONTENT_LIST, IMAGES, MARKDOWN, MIDDLE_JSON, RECORD, Store

# Columns of documents.parquet and their types; it has one row for each file of the corpus.
COLUMNS = {
    "path": "string",
    "sha256": "string",
    "shard": "string",
    "state": "string",
    "reason": "string",
    "detail": "string",
    "bytes": "int64",
    "pages": "int64",
    "failed_pages": "int64",
    "engine": "string",
    "characters": "int64",
    "images": "int64",
    "seconds": "float64",
    "markdown": "string",
}
# A folder of a document in the published tree holds this file; folders without it are not ours to remove.
_MARK = RECORD


@dataclass(frozen=True, slots=True)
class Published:
    """What was published: rows of the table, folders written, folders removed."""

    documents: int
    written: int
    removed: int


def read_receipt(path: Path) -> Receipt:
    """Return a receipt. Raises ResultsError when it is missing or damaged."""
    try:
        return Receipt.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ResultsError(f"{path}: missing or damaged; delete it to check its shard again") from error


def publish(results: Results, output: str, formats: list[str]) -> Published:
    """Bring the published tree and ``documents.parquet`` up to date with the receipts of the live shards."""
    store = Store(results.store, output)
    rows: list[dict[str, Any]] = []
    wanted: set[Path] = set()
    written = 0
    for tree, row, record in documents(results):
        if record is not None and record.state is not State.FAILED:
            folder = results.markdown / names.document_folder(tree)
            wanted.add(folder)
            markdown = f"{names.document_stem(tree)}.md"
            written += _link(store.folder(record.digest), results.markdown, folder, markdown, formats)
            if "markdown" in formats:
                row["markdown"] = str((folder / markdown).relative_to(results.root))
        rows.append(row)
    removed = _remove_others(results.markdown, wanted)
    table = pandas.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    aside = results.root / ".documents.parquet"
    table.to_parquet(aside, index=False)
    os.replace(aside, results.root / "documents.parquet")
    lines = results.root / "documents.jsonl"
    if "jsonl" in formats:
        files.write(lines, table.to_json(orient="records", lines=True, force_ascii=False))
    else:
        lines.unlink(missing_ok=True)
    return Published(len(rows), written, removed)


def documents(results: Results) -> Iterator[tuple[str, dict[str, Any], DocumentRecord | None]]:
    """Yield (tree path, row of the table, record of its bytes) for each file of the corpus, in order.

    Raises ResultsError when a receipt lacks a document that the plan gave to its shard.
    """
    records: dict[tuple[str, str], DocumentRecord] = {}
    first: dict[str, str] = {}
    read: set[str] = set()
    for tree, path, size, digest, shard, reason in files.read_table(results.corpus, CORPUS_COLUMNS):
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row |= {"path": path, "sha256": digest, "shard": shard, "bytes": int(size), "markdown": ""}
        row |= {"pages": 0, "failed_pages": 0, "characters": 0, "images": 0, "seconds": 0.0, "engine": "", "detail": ""}
        if not digest:
            yield names.unescape(tree), row | {"state": State.FAILED, "reason": Reason(reason)}, None
            continue
        if shard not in read:
            read.add(shard)
            records |= {(shard, record.digest): record for record in read_receipt(results.receipt(shard)).documents}
        try:
            record = records[shard, digest]
        except KeyError:
            raise ResultsError(f"{results.receipt(shard)}: lacks {path}; delete it to check the shard again") from None
        row |= {"state": record.state, "reason": record.reason or "", "detail": record.detail, "engine": record.engine}
        row |= {"pages": len(record.pages), "failed_pages": sum(page.reason is not None for page in record.pages)}
        row |= {"characters": record.characters, "images": record.images, "seconds": record.seconds}
        if digest in first:
            row |= {"state": State.DUPLICATE, "detail": f"the same bytes as {first[digest]}", "seconds": 0.0}
        first.setdefault(digest, path)
        yield names.unescape(tree), row, record


def _link(source: Path, tree: Path, folder: Path, markdown: str, formats: list[str]) -> bool:
    """Make ``folder``, below ``tree``, hold a document's files of ``formats`` only; return whether it changed."""
    wanted: dict[PurePosixPath, Path] = {PurePosixPath(RECORD): source / RECORD}
    pictures = sorted((source / IMAGES).iterdir()) if (source / IMAGES).is_dir() else []
    wanted |= {PurePosixPath(IMAGES, picture.name): picture for picture in pictures}
    if "markdown" in formats:
        wanted[PurePosixPath(markdown)] = source / MARKDOWN
    if "content_list" in formats:
        wanted[PurePosixPath(CONTENT_LIST)] = source / CONTENT_LIST
    if "middle_json" in formats:
        wanted[PurePosixPath(MIDDLE_JSON)] = source / MIDDLE_JSON
    try:
        _remove_links(folder / IMAGES, stop=tree)
        there = {PurePosixPath(path.relative_to(folder)) for path in _own_files(folder)}
        if there == set(wanted) and all(_same(original, folder / name) for name, original in wanted.items()):
            return False
        for name in there - set(wanted):
            (folder / name).unlink()
        for name, original in wanted.items():
            _link_file(original, folder / name)
        if (folder / IMAGES).is_dir() and not any((folder / IMAGES).iterdir()):
            (folder / IMAGES).rmdir()
    except OSError as error:
        raise ResultsError(f"{folder}: can't be published: {error.strerror or error}") from error
    return True


def _remove_links(folder: Path, stop: Path) -> None:
    """Remove links to folders on the way from ``stop`` to ``folder``: what is published stays below ``stop``."""
    while folder != stop:
        if folder.is_symlink():
            folder.unlink()
        folder = folder.parent


def _own_files(folder: Path) -> Iterator[Path]:
    """Yield the files that publishing puts into a document's folder: those in it and in its images."""
    for inner in (folder, folder / IMAGES):
        if inner.is_dir() and not inner.is_symlink():
            yield from (path for path in inner.iterdir() if path.is_symlink() or path.is_file())


def _same(original: Path, published: Path) -> bool:
    """Return whether ``published`` is ``original``, or a copy of it where links can't be made."""
    old, new = original.stat(), published.lstat()
    if (old.st_dev, old.st_ino) == (new.st_dev, new.st_ino):
        return True
    return old.st_size == new.st_size and old.st_mtime_ns == new.st_mtime_ns


def _link_file(original: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{os.getpid()}.part")
    aside.unlink(missing_ok=True)
    try:
        os.link(original, aside)
    except OSError:
        shutil.copy2(original, aside)
    os.replace(aside, target)
    aside.unlink(missing_ok=True)  # rename() of two links to one file does nothing and leaves both


def _remove_others(tree: Path, wanted: set[Path]) -> int:
    """Remove the folders of documents that are not ``wanted``, and folders left empty; return how many documents."""
    removed = 0
    for folder, _, inside in os.walk(tree, topdown=False):
        path = Path(folder)
        if path.name == IMAGES and path.parent in wanted:
            continue
        if _MARK in inside and path not in wanted:
            for file in list(_own_files(path)):
                file.unlink()
            if (path / IMAGES).is_dir() and not (path / IMAGES).is_symlink():
                (path / IMAGES).rmdir()
            removed += 1
        if path != tree and not any(path.iterdir()):
            path.rmdir()
    return removed
