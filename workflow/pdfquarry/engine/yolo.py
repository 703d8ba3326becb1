"""DocLayout-YOLO itself: the one module that knows the package.

The package is AGPL-3.0 and optional; it is imported when a model is loaded. Its checkpoints are pickles, which can run
code: only files from a source that you trust.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pdfquarry.errors import EnvironmentFault

# 0.0.4 imports the second without declaring it.
INSTALL = "pip install doclayout-yolo==0.0.4 huggingface_hub, and see docs/layout.md"
STRIDE = 32  # of the network: its input's sides are multiples


def input_shape(size: tuple[int, int], image_size: int) -> tuple[int, int]:
    """(height, width) that DocLayout-YOLO brings an image of (width, height) to: resized to fit, padded to the stride.

    Raises:
        ValueError: an image so narrow that nothing of its width is left.
    """
    scale = min(image_size / size[0], image_size / size[1])
    width, height = (round(side * scale) for side in size)
    if not width or not height:
        raise ValueError(f"a page of {size[0]} x {size[1]} pixels is too narrow for a layout detector")
    return height + (image_size - height) % STRIDE, width + (image_size - width) % STRIDE


class Yolo:
    """A loaded model on its device.

    Attributes:
        image_size: longer side of its input, in pixels.
        names: the names of its classes by number.
    """

    def __init__(self, model: Any, device: str, image_size: int | None) -> None:
        import torch

        self._model = model.to(device)
        # As an object: of a string, the library makes a CUDA_VISIBLE_DEVICES that the engine beside it would inherit.
        self._device = torch.device(device)
        self.image_size = -(-int(image_size or model.overrides.get("imgsz") or 1024) // STRIDE) * STRIDE
        self.names: dict[int, str] = dict(model.names)
        # By name: the module of the class wants Triton, which a machine whose blocks are left alone may lack.
        self._ours = [part for part in model.model.modules() if type(part).__name__ == "FastDilatedBlock"]
        self._ran: set[str] = set()
        for part in self._ours:
            part.register_forward_pre_hook(self._note)

    def boxes(self, images: list[Image.Image], confidence: float) -> list[NDArray[np.float32]]:
        """See ``detector.Network``."""
        from doclayout_yolo.data.augment import LetterBox
        from doclayout_yolo.utils.ops import scale_boxes

        # predict() would do this itself, but to a square as soon as two scans differ by one pixel.
        fit = LetterBox((self.image_size, self.image_size), auto=True, stride=STRIDE)
        pages = [np.asarray(image.convert("RGB"))[:, :, ::-1] for image in images]
        fitted = [np.ascontiguousarray(fit(image=np.ascontiguousarray(page))) for page in pages]
        results = self._model.predict(
            fitted, imgsz=self.image_size, conf=confidence, device=self._device, save=False, verbose=False
        )
        found = []
        for page, small, result in zip(pages, fitted, results, strict=True):
            boxes = result.boxes
            place = scale_boxes(small.shape[:2], boxes.xyxy.clone(), page.shape[:2])
            rows = np.column_stack([part.cpu().numpy() for part in (place, boxes.conf, boxes.cls)])
            found.append(rows.astype(np.float32))
        return found

    def facts(self) -> dict[str, Any]:
        """What runs: versions, device, how many of the dilated blocks are ours, and which implementations they use."""
        import torch

        from pdfquarry_kernels import arming

        parts = list(self._model.model.modules())
        return {
            "detector": f"doclayout-yolo {importlib.metadata.version('doclayout-yolo')}",
            "torch": torch.__version__,
            "device": str(self._device),
            "dilated_blocks": len(self._ours) or sum(type(part).__name__ == "DilatedBlock" for part in parts),
            "patched_blocks": len(self._ours),
            "implementation": ",".join(sorted(self._ran)) or ("not run yet" if self._ours else "library"),
            "patch_errors": [error for error in arming.errors() if "doclayout" in error],
        }

    def _note(self, block: Any, inputs: tuple[Any, ...]) -> None:
        """Keep what a block of ours is about to run; the answer is looked up, so asking each time costs nothing."""
        from pdfquarry_kernels.dispatch import choose

        x, name = inputs[0], block.implementation
        if name == "auto":
            shape = (*x.shape, block.weights().ksize)
            name = choose("dilated_block", shape, block.compute_dtype or x.dtype, x.device).implementation
        self._ran.add(name)


def load(weights: Path, device: str, image_size: int | None) -> Yolo:
    """Load a checkpoint with our patches armed.

    Raises:
        EnvironmentFault: the package is missing or broken; the weights are not there or not a checkpoint of it.
    """
    if importlib.util.find_spec("doclayout_yolo") is None:
        raise EnvironmentFault(
            f"layout: DocLayout-YOLO is not installed in the engine's environment; {INSTALL} (its licence is AGPL-3.0)"
        )
    if not weights.is_file():
        raise EnvironmentFault(f"{weights}: no such file; DocLayout-YOLO's weights are not downloaded by PDF Quarry")
    # Before unpickling, which can run code: is it one at all? The library tells a checkpoint by its suffix.
    if weights.suffix != ".pt" or b"YOLOv10DetectionModel" not in _pickle(weights):
        raise EnvironmentFault(
            f"{weights}: not a checkpoint of DocLayout-YOLO; a .pt file of a YOLOv10DetectionModel is needed,"
            " such as doclayout_yolo_docstructbench_imgsz1024.pt"
        )
    model_class = _imported()
    try:
        return Yolo(model_class(str(weights)), device, image_size)
    except Exception as error:
        raise EnvironmentFault(f"{weights}: DocLayout-YOLO can't load it on {device} ({one_line(error)})") from error


def _pickle(weights: Path) -> bytes:
    """The pickle inside a file that torch has saved; empty if it is no such file."""
    with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(weights) as archive:
        for name in archive.namelist():
            if name.endswith("/data.pkl"):
                return archive.read(name)
    return b""


def _imported() -> Any:
    """The model's class, with the patches armed and with what the library does beside its work switched off.

    By itself it installs packages with pip when a checkpoint names one that is missing, counts its use at an analytics
    service, and keeps a settings file that two processes starting at once would both write.
    """
    from pdfquarry_kernels import patches

    patches.apply()
    folder = tempfile.mkdtemp(prefix="pdfquarry-yolo-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with _environment(YOLO_AUTOINSTALL="false", YOLO_CONFIG_DIR=folder):
        try:
            from doclayout_yolo import YOLOv10, settings
            from doclayout_yolo.hub.utils import events
        except Exception as error:
            text = f"layout: DocLayout-YOLO can't be imported ({one_line(error)}); {INSTALL}"
            raise EnvironmentFault(text) from error
    events.enabled = False
    for name, value in settings.items():
        if value is True:  # sync, and a dozen of training services
            settings[name] = False
    return YOLOv10


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set variables for an import; afterwards take back what it has set itself, which the engine would inherit."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def one_line(error: BaseException) -> str:
    """An error as one line that is not too long."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
