"""The corpus: which files it has, found by name, size, mtime and inode, without opening one."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pdfquarry import files, names
from pdfquarry.errors import CorpusError, ResultsError

COLUMNS = ("path", "tree", "bytes", "mtime_ns", "inode")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the corpus.

    Args:
        path: where it is, to be opened from the folder that Snakemake runs in.
        tree: its path in the published tree: the name of the corpus folder, then the path below it.
        bytes: its size.
        mtime_ns: time of its last change, in nanoseconds.
        inode: its inode, which a replaced file changes.
    """

    path: str
    tree: str
    bytes: int
    mtime_ns: int
    inode: int


def find(corpus: list[str]) -> list[Entry]:
    """Return the files of ``corpus`` (see Settings.corpus), sorted by tree path.

    Folders are searched recursively for ``*.pdf`` in any case; links are followed, each folder is entered once, and a
    folder that can't be read is passed over. Files named outright, by a glob or in a list are taken whatever they are
    called.

    Raises CorpusError for a path that isn't there, and when nothing was found.
    """
    problems: list[str] = []
    found: dict[str, Entry] = {}
    for given in corpus:
        for path, root in _expand(os.path.expanduser(given), problems):
            name = os.path.basename(os.path.abspath(root))
            for inner in _walk(path) if os.path.isdir(path) else [path]:
                entry = _entry(inner, os.path.join(name, os.path.relpath(inner, root)))
                if entry is None:
                    continue
                other = found.setdefault(entry.tree, entry)
                if os.path.realpath(other.path) != os.path.realpath(entry.path):
                    problems.append(
                        f"corpus: {other.path} and {entry.path} would be published in one place; "
                        "give the folder above both, or rename one"
                    )
                    break
    if problems:
        raise CorpusError("\n".join(problems))
    if not found:
        raise CorpusError(f"corpus: no PDF in {', '.join(corpus)}; give a folder with *.pdf files")
    return sorted(found.values(), key=lambda entry: entry.tree)


def _expand(given: str, problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (path, root of its tree) for one item of the setting."""
    if glob.has_magic(given) and not os.path.exists(given):
        root = given
        while glob.has_magic(root):
            root = os.path.dirname(root)
        matches = sorted(glob.glob(given, recursive=True))
        if not matches:
            problems.append(f"corpus: nothing matches {given}")
        yield from ((match, root or ".") for match in matches if os.path.isfile(match))
    elif os.path.isdir(given):
        yield given, given
    elif given.endswith(".txt") and os.path.isfile(given):
        yield from _listed(given, problems)
    elif os.path.isfile(given):
        yield given, os.path.dirname(given) or "."
    else:
        problems.append(f"corpus: {given}: no such file or folder")


def _listed(listing: str, problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the paths of a list; they are relative to the list's folder, and keep their absolute path as the tree."""
    folder = os.path.dirname(os.path.abspath(listing))
    for number, line in enumerate(Path(listing).read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        path = os.path.normpath(os.path.join(folder, os.fsdecode(line)))
        if os.path.isfile(path):
            yield path, "/"
        else:
            problems.append(f"corpus: {listing}, line {number}: no such file: {names.escape(path)}")


def _walk(top: str) -> Iterator[str]:
    """Yield the PDFs below ``top``. Real folders go before linked ones, so that a link never takes a name from them."""
    entered: set[tuple[int, int]] = set()
    linked: list[str] = []
    pending = [top]
    while pending or linked:
        folder = pending.pop() if pending else linked.pop(0)
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in entered:
                continue
            entered.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                ordered = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in ordered:
            try:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.is_symlink() and entry.is_dir():
                    linked.append(entry.path)
                elif entry.name.lower().endswith(".pdf"):
                    yield entry.path
            except OSError:
                continue


def _entry(path: str, tree: str) -> Entry | None:
    """Return the entry of a regular file; devices, pipes and dangling links are no documents."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return Entry(path, os.path.normpath(tree).lstrip("/"), status.st_size, status.st_mtime_ns, status.st_ino)


def write_listing(path: Path, entries: list[Entry]) -> bool:
    """Write the listing if it differs from the one there; return whether it did."""
    rows = ((names.escape(e.path), names.escape(e.tree), e.bytes, e.mtime_ns, e.inode) for e in entries)
    return files.write_if_changed(path, files.table(COLUMNS, rows))


def read_listing(path: Path) -> list[Entry]:
    """Return the entries of a listing. Raises ResultsError when it is damaged."""
    try:
        return [
            Entry(names.unescape(row[0]), names.unescape(row[1]), int(row[2]), int(row[3]), int(row[4]))
            for row in files.read_table(path, COLUMNS)
        ]
    except ValueError as error:
        raise ResultsError(f"{path}: damaged ({error}); delete it to list the corpus anew") from error
