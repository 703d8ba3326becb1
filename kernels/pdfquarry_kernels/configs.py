"""Tuned configurations: JSON files, one an architecture, and the order in which they are looked up.

A file ``<arch>.json`` holds, beside where it comes from, a list of entries::

    {"op": "patch_embed", "dtypes": ["bf16", "fp16"], "shape": {"N": 1280, "K": 1176},
     "up_to": 2048, "use": "triton_gemm", "config": {"kernel": "plain", "BLOCK_M": 64, ...}}

``shape`` lists the sizes an entry is for; an empty one fits all. ``up_to`` bounds the size that
varies from call to call (rows of the patch embedding, pixels of the dilated block); null is no
bound. ``use`` names the implementation to run, which may be torch's own; ``config`` is for the
Triton implementation, also where another is faster, since it can be asked for by name.

Needs neither torch nor triton.
"""

import json
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

SCHEMA = 1
OVERRIDE_VARIABLE = "PDFQUARRY_KERNEL_CONFIGS"
SHIPPED = Path(__file__).parent / "configs"
EVIDENCE = ("measured", "compiler model")

# Which tuned architecture stands in for an untuned relative: same instruction set and register
# file, other unit count. Longest prefix first.
FAMILIES = (
    ("gfx115", "gfx1151"),
    ("gfx110", "gfx1100"),
    ("gfx120", "gfx1201"),
    ("gfx94", "gfx942"),
    ("gfx95", "gfx950"),
)

Entry = Mapping[str, Any]


class Found(NamedTuple):
    """An entry and the file it came from ("built-in" where none fits)."""

    entry: Entry
    source: str
    evidence: str


BUILT_IN: tuple[Entry, ...] = (
    # For cards nobody tuned: torch's linear is one library GEMM and never the slow Conv3d.
    {
        "op": "patch_embed",
        "dtypes": ["bf16", "fp16"],
        "shape": {},
        "up_to": None,
        "use": "linear",
        "config": {"kernel": "plain", "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32}
        | {"GROUP_M": 8, "num_warps": 8, "num_stages": 2},
    },
    {
        "op": "patch_embed",
        "dtypes": ["fp32"],
        "shape": {},
        "up_to": None,
        "use": "linear",
        "config": {"kernel": "plain", "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
        | {"GROUP_M": 8, "num_warps": 4, "num_stages": 1},
    },
    {
        "op": "dilated_block",
        "dtypes": ["bf16", "fp16", "fp32"],
        "shape": {},
        "up_to": None,
        "use": "triton",
        "config": {"kernel": "two_step", "TILE_H": 8, "TILE_W": 8, "BLOCK_N": 32, "BLOCK_C": 32}
        | {"num_warps": 4, "num_stages": 1}
        | {"tail": {"BLOCK_P": 64, "BLOCK_O": 32, "BLOCK_C": 32, "num_warps": 4, "num_stages": 1}},
    },
)


def user_directory() -> Path:
    """Where tuning writes by default: ``$XDG_CACHE_HOME/pdf-quarry/kernels``."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "pdf-quarry" / "kernels"


def directories() -> list[Path]:
    """The directories to look in, first one first: override, the user's cache, shipped."""
    override = os.environ.get(OVERRIDE_VARIABLE)
    return ([Path(override)] if override else []) + [user_directory(), SHIPPED]


def measured(arch: str) -> Path | None:
    """The file that holds what was measured on a card of this very architecture; None where nobody has tuned one."""
    for directory in directories():
        path = directory / f"{arch}.json"
        if path.is_file() and load(path)["evidence"] == "measured":
            return path
    return None


def family(arch: str) -> str:
    """The tuned architecture that stands in for ``arch``; itself where there is none."""
    return next((known for prefix, known in FAMILIES if arch.startswith(prefix)), arch)


@lru_cache(maxsize=64)
def _read(path: Path, _modified: int) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    if document.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema is {document.get('schema')!r}, {SCHEMA} is read")
    if document.get("evidence") not in EVIDENCE:
        raise ValueError(f"{path}: evidence is {document.get('evidence')!r}, not one of {EVIDENCE}")
    return document


def load(path: Path) -> dict[str, Any]:
    """A configuration file's content.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON, of another schema, or of no known evidence.
    """
    return _read(path, path.stat().st_mtime_ns)


def candidates(arch: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The files that may speak for ``arch``, in the order in which they count, with their paths.

    The card's own architecture in every directory comes before its family's.
    """
    for name in dict.fromkeys((arch, family(arch))):
        for directory in directories():
            path = directory / f"{name}.json"
            if path.is_file():
                yield load(path), str(path)


def best_entry(
    entries: list[Entry] | tuple[Entry, ...],
    op: str,
    dtype: str,
    shape: Mapping[str, int],
    size: int,
) -> Entry | None:
    """The entry for one call: the most specific shape first, then the smallest bucket."""

    def fits(entry: Entry) -> bool:
        return (
            entry["op"] == op
            and dtype in entry["dtypes"]
            and all(shape.get(name) == value for name, value in entry["shape"].items())
            and (entry["up_to"] is None or size <= entry["up_to"])
        )

    def rank(entry: Entry) -> tuple[int, float]:
        return -len(entry["shape"]), float("inf") if entry["up_to"] is None else entry["up_to"]

    return min(filter(fits, entries), key=rank, default=None)


def lookup(arch: str, op: str, dtype: str, shape: Mapping[str, int], size: int) -> Found:
    """The configuration for one call.

    Args:
        arch: ``gfx1100`` (gcnArchName without its features) or ``sm_90``; never a product name.
        op: ``patch_embed`` or ``dilated_block``.
        dtype: ``bf16``, ``fp16`` or ``fp32``.
        shape: the sizes that a model fixes (N and K, or C and KSIZE).
        size: the size that varies: rows, or pixels.

    Raises:
        ValueError: a configuration file is damaged, or ``op`` and ``dtype`` are unknown.
    """
    for document, path in candidates(arch):
        entry = best_entry(document["entries"], op, dtype, shape, size)
        if entry is not None:
            return Found(entry, path, document["evidence"])
    entry = best_entry(BUILT_IN, op, dtype, shape, size)
    if entry is None:
        raise ValueError(f"op: no configuration for {op!r} with dtype {dtype!r}")
    return Found(entry, "built-in", "none")
