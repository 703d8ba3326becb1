"""Pages of a document as pictures, made inside a reader ahead of the engine."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import Any

from pdfquarry.document import Task, read_bytes
from pdfquarry.errors import ResultsError
from pdfquarry.readers import Beat
from pdfquarry.records import DocumentRecord, Reason, Stage, Unopenable


@dataclass(slots=True)
class Picture:
    """One page, ready for an engine.

    Args:
        page: its index in the document, from 0.
        source: where its text is without a model: text, picture or blank (``textlayer.Source``).
        size: width and height in pixels.
        pixels: RGB, row by row; empty for a blank page, and for one that can't be rendered.
        reason: why it can't be rendered.
        seconds: wall seconds to look at and render it.
    """

    page: int
    source: str = ""
    size: tuple[int, int] = (0, 0)
    pixels: bytes = b""
    reason: Reason | None = None
    seconds: float = 0.0


@dataclass(slots=True)
class PictureTask:
    """Pages of a document to render: those of ``pages`` that it has. ``document`` says where its bytes are."""

    document: Task
    pages: list[int]

    def __call__(self, beat: Beat) -> Pictures | DocumentRecord:
        """Return the pictures, or the document's record when it can't be opened."""
        try:
            return render(self, beat)
        except Unopenable as error:
            return self.document.failed(error.reason, str(error))
        except (MemoryError, ResultsError):
            raise
        except Exception as error:  # whatever a hostile file makes a library raise is the document's
            traceback.print_exc()
            return self.document.failed(Reason.ENGINE_REJECTED, f"{type(error).__name__}: {error}"[:300])


@dataclass(slots=True)
class Pictures:
    """What a PictureTask gives: the number of pages of the document, its bytes, and the pictures."""

    count: int
    size: int
    pictures: list[Picture]


# The document that this reader has open: books are asked for in many tasks.
_open: tuple[str, int, Any] | None = None


def render(task: PictureTask, beat: Beat) -> Pictures:
    """Return pictures of pages. Raises Unopenable."""
    size, document = _document(task.document)
    count = len(document)
    pictures = []
    for page in task.pages:
        if page < count:
            beat(Stage.READ, page, page)
            pictures.append(_picture(document, page, task.document))
    return Pictures(count, size, pictures)


def _document(task: Task) -> tuple[int, Any]:
    from pdfquarry.embedded import open_pdf

    global _open
    if _open is None or _open[0] != task.digest:
        close()
        data = read_bytes(task)
        _open = (task.digest, len(data), open_pdf(data))
    return _open[1], _open[2]


def close() -> None:
    """Close the document that this reader has open."""
    global _open
    if _open is not None:
        _open[2].close()
        _open = None


def _picture(document: Any, index: int, task: Task) -> Picture:
    import pypdfium2

    from pdfquarry.textlayer import Source, examine

    if index in task.skip:
        return Picture(index, reason=task.skip[index])
    started = time.perf_counter()
    picture = Picture(index)
    try:
        page = document[index]
        try:
            picture.source = examine(page).source
            if picture.source != Source.BLANK:
                width, height = page.get_size()
                scale = min(task.dpi / 72, (task.most_pixels / max(width * height, 1e-6)) ** 0.5)
                bitmap = page.render(scale=scale, rev_byteorder=True)
                try:
                    image = bitmap.to_pil().convert("RGB")
                    picture.size, picture.pixels = image.size, image.tobytes()
                finally:
                    bitmap.close()
        finally:
            page.close()
    except (pypdfium2.PdfiumError, ValueError):
        picture.reason = Reason.CORRUPT
    picture.seconds = time.perf_counter() - started
    return picture
