"""DocLayout-YOLO as the detector of step one, in the engine's process: pages in, regions out, batches of one shape."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pdfquarry.engine import yolo
from pdfquarry.engine.reading_order import order
from pdfquarry.engine.regions import CLASSES, Region, clean
from pdfquarry.errors import EnvironmentFault

PATIENCE = 4  # batches of other shapes that a waiting page lets pass
Shape = tuple[int, int]

_log = logging.getLogger(__name__)


class Network(Protocol):
    """What ``Detector`` needs of a loaded model: ``yolo.Yolo``, or a stand-in in tests."""

    image_size: int
    names: dict[int, str]

    def boxes(self, images: list[Image.Image], confidence: float) -> list[NDArray[np.float32]]:
        """For images of one input shape, as one batch: per image [n, 6], x0, y0, x1, y1 in its pixels, score, class."""

    def facts(self) -> dict[str, Any]:
        """What the receipt says of it."""


class Detector:
    """Finds the regions of pages. Not for several threads at once: ``Batcher`` has one for it.

    Args:
        weights: the checkpoint, a ``.pt`` file of the ten classes of DocStructBench.
        device: as torch names it: ``cuda:0`` (also on ROCm), ``cpu``.
        batch: most pages a batch.
        image_size: longer side of the network's input in pixels; None for what the checkpoint was trained with, which
            is the library's own default.
        confidence: least score of a region. Low, as in MinerU 2.x: text that no region holds is lost, while a region
            too many is most often a nested one, which ``clean`` drops.

    Raises:
        EnvironmentFault: the package is missing, or the weights are not there or not such a checkpoint.
    """

    def __init__(
        self, weights: Path, device: str, batch: int = 8, image_size: int | None = None, confidence: float = 0.1
    ) -> None:
        self._network = yolo.load(weights, device, image_size)
        self._confidence = confidence
        unknown = sorted(set(self._network.names.values()) - CLASSES.keys())
        if unknown:
            raise EnvironmentFault(
                f"{weights}: finds {', '.join(unknown)}, which PDF Quarry has no use for;"
                f" take weights trained on DocStructBench, whose classes are {', '.join(CLASSES)}"
            )
        self.batch = batch
        self._pages = 0
        self._batches = 0
        self._seconds = 0.0

    def shape(self, image: Image.Image) -> Shape:
        """(height, width) of the network's input for a page; pages of one shape can share a batch."""
        return yolo.input_shape(image.size, self._network.image_size)

    def detect(self, images: list[Image.Image]) -> list[list[Region]]:
        """The regions of each page, in reading order.

        Args:
            images: pages in RGB, of any sizes; they are run in batches of equal input shape.

        Returns:
            For each image, in the order of the images: ``{"type", "bbox", "angle", "score"}``, see ``regions``.
        """
        groups: dict[Shape, list[int]] = {}
        for index, image in enumerate(images):
            groups.setdefault(self.shape(image), []).append(index)
        found: dict[int, list[Region]] = {}
        for indices in groups.values():
            for start in range(0, len(indices), self.batch):
                chunk = indices[start : start + self.batch]
                found.update(zip(chunk, self._run([images[index] for index in chunk]), strict=True))
        return [found[index] for index in range(len(images))]

    def _run(self, images: list[Image.Image]) -> list[list[Region]]:
        started = time.perf_counter()
        try:
            results = self._network.boxes(images, self._confidence)
        finally:
            self._seconds += time.perf_counter() - started
        self._pages += len(images)
        self._batches += 1
        return [self._regions(rows, image.size) for rows, image in zip(results, images, strict=True)]

    def _regions(self, rows: NDArray[np.float32], size: tuple[int, int]) -> list[Region]:
        width, height = size
        found = [
            {
                "type": CLASSES[self._network.names[int(label)]],
                "bbox": [x0 / width, y0 / height, x1 / width, y1 / height],
                "angle": 0,
                "score": score,
            }
            for x0, y0, x1, y1, score, label in rows.astype(np.float64).tolist()
        ]
        return order(clean(found))

    def state(self) -> dict[str, Any]:
        """For the receipt: what runs, the dilated blocks that are ours, and the pages, batches and seconds so far."""
        return self._network.facts() | {
            "image_size": self._network.image_size,
            "confidence": self._confidence,
            "batch": self.batch,
            "pages": self._pages,
            "batches": self._batches,
            "seconds": round(self._seconds, 3),
        }


class Batcher:
    """Gives a detector batches from pages that come one by one; the event loop never waits for it.

    While a batch runs, pages queue. The next batch is taken from the largest group of one shape, the oldest first, but
    the oldest page of all is next, whatever its group, once it has let ``PATIENCE`` batches pass. When a batch fails,
    its pages are tried one by one, so that a page which can't be done costs itself only.
    """

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="detector")
        self._waiting: list[_Page] = []  # the oldest first
        self._batches = 0
        self._worker: asyncio.Task[None] | None = None

    async def regions(self, image: Image.Image) -> list[Region]:
        """The regions of a page, in reading order.

        Raises:
            Exception: what the detector raised for this page.
        """
        answer: asyncio.Future[list[Region]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Page(image, self._detector.shape(image), answer, self._batches))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def close(self) -> None:
        """Let the running batch end; pages that still wait are cancelled."""
        for page in self._waiting:
            page.answer.cancel()
        if self._worker is not None:
            await asyncio.wait([self._worker])
        self._thread.shutdown()

    async def _work(self) -> None:
        while pages := self._next():
            error = await self._answer(pages)
            if error is None:
                continue
            _log.warning(
                "the detector failed on a batch of %d, whose pages are tried one by one: %s", len(pages), error
            )
            for page in pages:
                error = await self._answer([page])
                if error is not None and not page.answer.done():
                    page.answer.set_exception(error)

    async def _answer(self, pages: list[_Page]) -> Exception | None:
        images = [page.image for page in pages]
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._thread, self._detector.detect, images)
        except Exception as error:
            return error
        for page, regions in zip(pages, results, strict=True):
            if not page.answer.done():  # of a page that was cancelled nobody wants to know
                page.answer.set_result(regions)
        return None

    def _next(self) -> list[_Page]:
        """The pages of the next batch, all of one shape; none if nothing waits."""
        self._waiting = [page for page in self._waiting if not page.answer.done()]
        if not self._waiting:
            return []
        groups: dict[Shape, list[_Page]] = {}  # the group of the oldest page first
        for page in self._waiting:
            groups.setdefault(page.shape, []).append(page)
        overdue = self._batches - self._waiting[0].since >= PATIENCE
        group = groups[self._waiting[0].shape] if overdue else max(groups.values(), key=len)
        pages = group[: self._detector.batch]
        self._waiting = [page for page in self._waiting if page not in pages]
        self._batches += 1
        return pages


@dataclass(eq=False)
class _Page:
    """A page that waits; ``since`` is how many batches had begun when it came."""

    image: Image.Image
    shape: Shape
    answer: asyncio.Future[list[Region]]
    since: int
