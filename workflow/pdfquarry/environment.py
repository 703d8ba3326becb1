"""The environment: what is installed here, and the proof that the engine works, made once and kept."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from pdfquarry import __version__, files
from pdfquarry.errors import EnvironmentFault
from pdfquarry.results import Results
from pdfquarry.settings import Settings

PACKAGES = (
    "snakemake",
    "docvortex",
    "pypdfium2",
    "faster-paddle",
    "onnxruntime",
    "pebble",
    "pandas",
    "pyarrow",
    "pydantic",
)
_PROOF = "Quarry stone 1234"


def versions() -> dict[str, str]:
    """Return the version of each package that a run uses; an absent one has an empty version."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def environment(results: Results, settings: Settings) -> None:
    """Prove the embedded engine and write environment.json.

    Raises EnvironmentFault when a package is missing, when the engine can't read a page that it is given, or when the
    settings name a GPU architecture, since the engines for GPUs are not part of this version.
    """
    if settings.arch not in ("auto", "cpu"):
        raise EnvironmentFault(
            f"arch: {settings.arch} was asked for, and this version has no engine for GPUs yet; "
            "use arch=auto or arch=cpu for the embedded engine"
        )
    missing = [name for name, found in versions().items() if not found]
    if missing:
        raise EnvironmentFault(f"not installed: {', '.join(missing)}; run: {sys.executable} -m pip install .")
    prove(settings)
    files.write_json(
        results.root / "environment.json",
        {
            "pdfquarry": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "machine": platform.machine(),
            "arch": "cpu",
            "engine": settings.engine,
            "packages": versions(),
        },
    )


def prove(settings: Settings) -> None:
    """Read a page through its text layer and through its picture. Raises EnvironmentFault when either fails."""
    import pypdfium2

    from pdfquarry import embedded, ocr

    box = (20.0, 20.0, 260.0, 44.0)
    page = ocr.set_page([ocr.Line(_PROOF, box)], 280, 80)
    try:
        blocks = embedded.blocks_of(page)
        with pypdfium2.PdfDocument(page) as document:
            lines = ocr.read(document[0], settings.ocr_model, 1_000_000)
    except Exception as error:
        raise EnvironmentFault(f"the embedded engine does not run here: {type(error).__name__}: {error}") from error
    for name, text in (("docvortex", str(blocks)), ("faster-paddle", " ".join(line.text for line in lines))):
        if _PROOF not in text:
            raise EnvironmentFault(f"{name} misreads the test page ({text[:80]!r}); reinstall it")
