"""Names of files: any bytes as text and back, and the folder that a document is published in."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import PurePosixPath

_UNSAFE = re.compile(r"[\\\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
# Longest component in bytes. ext4, xfs, btrfs allow 255; room is left for a hash and for names beside it.
_LONGEST = 120
# Longest tree path in bytes; PATH_MAX is 4096 with the results folder in front.
_LONGEST_TREE = 1500
_PLAIN = re.compile(r"[a-z0-9](?:[a-z0-9_. -]*[a-z0-9_-])?\Z")


def escape(name: str) -> str:
    r"""Return a path as text that every table can hold: one line, no tab, valid UTF-8.

    ``name`` is a path as Python gives it (undecodable bytes are surrogates). A backslash, a control character and
    each undecodable byte becomes ``\xNN``; everything else stays. ``unescape`` gives the same path back.
    """
    return _UNSAFE.sub(lambda found: "".join(f"\\x{byte:02x}" for byte in os.fsencode(found[0])), name)


def unescape(text: str) -> str:
    """Return the path that ``escape`` made ``text`` from."""
    if "\\" not in text:
        return text
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), text.encode())
    return os.fsdecode(raw)


def document_folder(tree: str) -> PurePosixPath:
    """Return the folder, relative to the published tree, for the document at ``tree`` (its path in the corpus).

    It depends on this path alone, not on neighbours, and no two paths share one, even where case is ignored:

    * A path of lower-case ASCII letters, digits, ``- _ .`` and spaces is kept as it is, the file's name included.
    * Any other path is kept as far as it is safe, and ``~`` with twelve hex digits of the path's SHA-256 is added.

    The folder keeps the file's ending, so it can't meet a sibling folder of the corpus: ``a.pdf`` beside ``a/``.
    """
    parts = PurePosixPath(tree).parts
    if all(len(part) <= _LONGEST and _PLAIN.match(part) for part in parts) and len(tree) <= _LONGEST_TREE:
        return PurePosixPath(*parts)
    mark = hashlib.sha256(os.fsencode(tree)).hexdigest()[:12]
    folders = [_safe(part) for part in parts[:-1]]
    if sum(len(folder.encode()) + 1 for folder in folders) > _LONGEST_TREE:
        folders = ["long paths", mark[:2]]
    return PurePosixPath(*folders, f"{_safe(parts[-1])}~{mark}")


def document_stem(tree: str) -> str:
    """Return the name, without an ending, of the Markdown file of the document at ``tree``."""
    return _safe(re.sub(r"(?i)[.]pdf$", "", PurePosixPath(tree).name))


def _safe(part: str) -> str:
    """Return a component without what a file system, a shell or a browser may misread."""
    text = re.sub(r'[\\/:*?"<>|]', "_", escape(part)).rstrip(". ").lstrip(".- ")
    while len(text.encode()) > _LONGEST:
        text = text[:-1]
    return text or "_"
