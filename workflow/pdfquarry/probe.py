"""What planning needs of a file that is new or changed: the digest of its bytes, and how many pages it has."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pdfquarry.readers import Beat, Death, Readers
from pdfquarry.records import Reason

# Files of one task: enough to make the passing around of tasks cheap, few enough to share among readers.
CHUNK = 32
# Seconds for one file; hashing reads it whole, so a very large one on a slow disk sets the figure.
DEADLINE = 300
MEMORY_MB = 2048


@dataclass(frozen=True, slots=True)
class Probe:
    """A file's digest (empty when it could not be read, with the reason), and its pages (0 when not known)."""

    digest: str
    pages: int
    reason: Reason | None = None


def probe(paths: list[str], workers: int) -> dict[str, Probe]:
    """Return the probe of each path. A file that stops its reader is hashed here and has no page count."""
    found: dict[str, Probe] = {}
    chunks = [paths[start : start + CHUNK] for start in range(0, len(paths), CHUNK)]
    readers = Readers(_probe_all, min(workers, len(chunks)) or 1, DEADLINE, MEMORY_MB, _prepare)
    for ended in readers.run(chunks):
        if ended is None:
            continue
        chunk, outcome = ended
        if not isinstance(outcome, Death):
            found.update(zip(chunk, outcome, strict=True))
        elif len(chunk) > 1:
            chunks.extend([path] for path in chunk)
        else:
            found[chunk[0]] = _hash(chunk[0])
    return found


def _prepare() -> None:
    import pypdfium2  # noqa: F401  loaded before the memory limit is set


def _probe_all(paths: list[str], beat: Beat) -> list[Probe]:
    probes = []
    for index, path in enumerate(paths):
        beat(0, index, index)
        hashed = _hash(path)
        probes.append(hashed if hashed.reason else Probe(hashed.digest, _pages(path)))
    return probes


def _hash(path: str) -> Probe:
    try:
        with open(path, "rb") as file:
            return Probe(hashlib.file_digest(file, "sha256").hexdigest(), 0)
    except FileNotFoundError:
        return Probe("", 0, Reason.VANISHED)
    except OSError:
        return Probe("", 0, Reason.UNREADABLE)


def _pages(path: str) -> int:
    import pypdfium2

    try:
        with pypdfium2.PdfDocument(path) as document:
            return len(document)
    except pypdfium2.PdfiumError:
        return 0  # extraction finds out why, and says so
    except (OSError, ValueError):
        return 0
