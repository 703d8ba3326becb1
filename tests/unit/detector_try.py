"""Runs our detector on the real doclayout-yolo with random weights on the CPU; prints what was found as JSON."""

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from doclayout import declare_torchvision_operators
from pdfquarry.engine import yolo
from pdfquarry.engine.detector import Detector
from pdfquarry.engine.regions import CLASSES

IMAGE_SIZE, CONFIDENCE = 256, 0.5


def save_random_weights(file: Path) -> None:
    """A checkpoint as the library writes it, whose activations and scores are of a trained network's order."""
    from doclayout_yolo.nn.tasks import YOLOv10DetectionModel

    torch.manual_seed(0)
    network = YOLOv10DetectionModel("yolov10m-doclayout.yaml", nc=len(CLASSES), verbose=False).train()
    norms = [part for part in network.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    kept = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None  # the plain mean of what it sees
        norm.reset_running_stats()
    pages = [np.asarray(page(seed, (192, 256))) for seed in range(8)]  # like those below
    images = torch.from_numpy(np.stack(pages)).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        network(images)
    for norm, momentum in zip(norms, kept, strict=True):
        norm.momentum = momentum
        norm.running_var.clamp_(min=float(norm.running_var.mean()) / 2)  # what never varies would be blown up

    head = network.eval().model[-1]
    for branches, bias in ((head.one2one_cv2, 3.0), (head.one2one_cv3, -2.0)):
        hooks = [branch[-1].register_forward_hook(functools.partial(spread, bias)) for branch in branches]
        with torch.no_grad():
            network(images)
        for hook in hooks:
            hook.remove()
    network.names = dict(enumerate(CLASSES))
    torch.save({"model": network, "train_args": {"imgsz": IMAGE_SIZE, "task": "detect"}}, file)


def spread(mean: float, layer: torch.nn.Conv2d, inputs: object, output: torch.Tensor) -> None:
    """Give a last layer's outputs this mean and a deviation of 1."""
    out = output - layer.bias.view(1, -1, 1, 1)
    deviation = out.std((0, 2, 3)) + 1e-6
    layer.weight.data /= deviation.view(-1, 1, 1, 1)
    layer.bias.data = mean - out.mean((0, 2, 3)) / deviation


def page(seed: int, size: tuple[int, int]) -> Image.Image:
    random = np.random.default_rng(seed)
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for _ in range(40):
        x, y, w, h = (random.random(4) * [size[0], size[1], size[0] / 2, size[1] / 8]).tolist()
        draw.rectangle([x, y, x + w, y + h], fill=tuple(random.integers(0, 255, 3).tolist()))
    return image


def numbers(found: list[list[dict[str, Any]]]) -> list[list[float]]:
    return [[value for region in regions for value in (*region["bbox"], region["score"])] for regions in found]


def difference(one: list[list[float]], other: list[list[float]]) -> float:
    pairs = [(np.array(a), np.array(b)) for a, b in zip(one, other, strict=True)]
    return max(float(np.abs(a - b).max()) if a.shape == b.shape else 9.0 for a, b in pairs)


def main() -> None:
    declare_torchvision_operators()
    weights = Path("random.pt")
    environment = dict(os.environ)
    yolo_class = yolo._imported()
    found: dict[str, Any] = {"environment kept": dict(os.environ) == environment}
    save_random_weights(weights)
    with_library = Detector(weights, "cpu", confidence=CONFIDENCE)
    os.environ["PDFQUARRY_PATCHES"] = "force"
    with_ours = Detector(weights, "cpu", confidence=CONFIDENCE)
    del os.environ["PDFQUARRY_PATCHES"]

    sizes = [(620, 877), (638, 825), (621, 876), (877, 620), (620, 877), (300, 900)]
    pages = [page(seed, size) for seed, size in enumerate(sizes)]
    together = with_library.detect(pages)
    found |= {
        "regions": [len(regions) for regions in together],
        "types": sorted({region["type"] for regions in together for region in regions}),
        "batches": with_library.state()["batches"],
        "one by one": difference(numbers(together), [numbers(with_library.detect([one]))[0] for one in pages]),
        "patched": difference(numbers(together), numbers(with_ours.detect(pages))),
        "states": [with_library.state(), with_ours.state()],
    }

    block = with_ours._network._ours[0]
    block.implementation = "auto"
    with_ours._network._note(block, (torch.zeros(1, block.weights().channels, 8, 8),))
    found["implementations"] = with_ours.state()["implementation"].split(",")

    # What the library's own predict() makes of a page, in pixels of that page.
    own = yolo_class(str(weights)).predict(pages[2], conf=CONFIDENCE, device=torch.device("cpu"), verbose=False)[0]
    rows = with_library._network.boxes([pages[2]], CONFIDENCE)[0]
    found["as predict()"] = float(np.abs(own.boxes.data.numpy() - rows).max())
    found["rows"] = len(rows)

    from doclayout_yolo.data.augment import LetterBox
    from doclayout_yolo.hub.utils import events

    fit = LetterBox((IMAGE_SIZE, IMAGE_SIZE), auto=True, stride=yolo.STRIDE)
    random = np.random.default_rng(1)
    shapes = [tuple(map(int, random.integers(20, 400, 2))) for _ in range(300)]
    found["shapes"] = sum(
        fit(image=np.zeros((height, width, 3), np.uint8)).shape[:2] != yolo.input_shape((width, height), IMAGE_SIZE)
        for width, height in shapes
    )
    found["counted by the library"] = events.enabled
    found["environment after"] = dict(os.environ) == environment
    print("FOUND", json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
