"""Planning: every live document in exactly one shard, and a planned shard never changes.

A shard is a list of digests. New digests go into new shards, so nothing that was planned moves: a renamed, copied or
touched file is no new digest, a removed one only drops out of the index, a changed one is a new digest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from pdfquarry import files, names
from pdfquarry.corpus import Entry, read_listing
from pdfquarry.probe import Probe, probe
from pdfquarry.results import Results

SHARD_COLUMNS = ("digest", "bytes", "pages")
PATH_COLUMNS = ("digest", "path")
CORPUS_COLUMNS = ("tree", "path", "bytes", "digest", "shard", "reason")
INDEX_COLUMNS = ("shard", "documents", "pages")
_DIGEST_COLUMNS = ("path", "bytes", "mtime_ns", "inode", "digest", "pages")
# A shard of unreadable or one-page files stays small enough for one job, whatever pages_per_shard says.
_MOST_DOCUMENTS = 5000


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a shard: digest, size in bytes, pages (0 when they could not be counted)."""

    digest: str
    bytes: int
    pages: int


@dataclass(frozen=True, slots=True)
class Planned:
    """What a plan did: files of the corpus, files opened, documents and shards that are new."""

    files: int
    opened: int
    documents: int
    shards: int


def plan(results: Results, pages_per_shard: int, workers: int) -> Planned:
    """Read the listing; write the new shards, the paths of the live ones, the corpus table and the index.

    Raises ResultsError when a table of an earlier plan is damaged.
    """
    entries = read_listing(results.listing)
    probes, opened = _probes(results.digests, entries, workers)
    home = _planned(results)
    fresh: dict[str, Document] = {}
    for entry in entries:
        found = probes[entry.path]
        if found.digest and found.digest not in home:
            fresh.setdefault(found.digest, Document(found.digest, entry.bytes, found.pages))
    shards = divide(list(fresh.values()), pages_per_shard)
    highest = max((int(path.name[1:6]) for path in results.shards.glob("s*.tsv")), default=0)
    for number, shard in enumerate(shards, start=highest + 1):
        rows = [(document.digest, document.bytes, document.pages) for document in shard]
        text = files.table(SHARD_COLUMNS, rows)
        name = f"s{number:05d}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        files.write(results.shard(name), text)
        home.update((document.digest, name) for document in shard)
    _write_tables(results, entries, probes, home)
    return Planned(len(entries), opened, len(fresh), len(shards))


def divide(documents: list[Document], pages_per_shard: int) -> list[list[Document]]:
    """Divide documents, in order, into shards of about equal pages.

    The number of shards is the pages over ``pages_per_shard``, rounded up; each is filled to its share, so that no
    short one is left for the end. A document counts as one page at least and is never split.
    """
    total = sum(max(1, document.pages) for document in documents)
    if not documents:
        return []
    share = total / -(-total // pages_per_shard)
    shards: list[list[Document]] = [[]]
    before = filled = 0
    for document in documents:
        pages = max(1, document.pages)
        # With more than half of a document over the line, the next shard gets nearer to its share by taking it.
        full = filled + pages / 2 > share * (before + 1) or len(shards[-1]) == _MOST_DOCUMENTS
        if shards[-1] and full:
            shards.append([])
            before += 1
        shards[-1].append(document)
        filled += pages
    return shards


def read_shard(path: Path) -> list[Document]:
    """Return the documents of a shard. Raises ResultsError when its file is damaged."""
    return [Document(row[0], int(row[1]), int(row[2])) for row in files.read_table(path, SHARD_COLUMNS)]


def read_paths(path: Path) -> dict[str, list[str]]:
    """Return digest -> paths that had these bytes when they were listed."""
    found: dict[str, list[str]] = {}
    for digest, escaped in files.read_table(path, PATH_COLUMNS):
        found.setdefault(digest, []).append(names.unescape(escaped))
    return found


def _probes(cache: Path, entries: list[Entry], workers: int) -> tuple[dict[str, Probe], int]:
    """Return path -> probe, opening only files whose path, size, mtime or inode is new; and how many were opened."""
    known: dict[tuple[str, ...], Probe] = {}
    if cache.exists():
        for *key, digest, pages in files.read_table(cache, _DIGEST_COLUMNS):
            known[tuple(key)] = Probe(digest, int(pages))
    keys = {e.path: (names.escape(e.path), str(e.bytes), str(e.mtime_ns), str(e.inode)) for e in entries}
    unknown = [path for path, key in keys.items() if key not in known]
    fresh = probe(unknown, workers) if unknown else {}
    probes = {path: fresh[path] if path in fresh else known[key] for path, key in keys.items()}
    rows = [(*keys[path], found.digest, found.pages) for path, found in probes.items() if found.digest]
    files.write_if_changed(cache, files.table(_DIGEST_COLUMNS, rows))
    return probes, len(unknown)


def _planned(results: Results) -> dict[str, str]:
    """Return digest -> the last shard that holds it, without those whose failure was of the moment."""
    home: dict[str, str] = {}
    for path in sorted(results.shards.glob("s*.tsv")):
        for document in read_shard(path):
            home[document.digest] = path.stem
    for path in results.root.glob("shards/s*/passing.tsv"):
        for (digest,) in files.read_table(path, ("digest",)):
            if home.get(digest) == path.parent.name:
                del home[digest]
    return home


def _write_tables(results: Results, entries: list[Entry], probes: dict[str, Probe], home: dict[str, str]) -> None:
    rows: list[tuple[object, ...]] = []
    paths: dict[str, list[tuple[str, str]]] = {}
    size: dict[str, dict[str, int]] = {}
    for entry in entries:
        found = probes[entry.path]
        shard = home.get(found.digest, "")
        path = names.escape(entry.path)
        rows.append((names.escape(entry.tree), path, entry.bytes, found.digest, shard, found.reason or ""))
        if shard:
            paths.setdefault(shard, []).append((found.digest, path))
            size.setdefault(shard, {})[found.digest] = max(1, found.pages)
    for shard, located in paths.items():
        files.write_if_changed(results.paths(shard), files.table(PATH_COLUMNS, located))
    index = [(shard, len(pages), sum(pages.values())) for shard, pages in sorted(size.items())]
    # Written each time, since Snakemake removes the outputs of a job before it runs.
    files.write(results.corpus, files.table(CORPUS_COLUMNS, rows))
    files.write(results.index, files.table(INDEX_COLUMNS, index))
