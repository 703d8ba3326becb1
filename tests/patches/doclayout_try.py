"""Loads a real doclayout-yolo model (random weights) with the patches armed; prints what was found as JSON."""

import copy
import json
import os

import numpy
import torch

from pdfquarry_kernels import arming, patches
from pdfquarry_kernels.doclayout import FastDilatedBlock


def blocks(model: torch.nn.Module) -> int:
    return sum(isinstance(part, FastDilatedBlock) for part in model.modules())


def tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [tensor for part in inside for tensor in tensors(part)]


def main() -> None:
    # torchvision's Python half asks for operators that its compiled half, missing here, would have declared.
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    patches.apply()
    patches.apply()
    os.environ[arming.PATCHES_ENV] = "auto"
    from doclayout_yolo import YOLOv10

    plain = YOLOv10("yolov10m-doclayout.yaml")
    found = {"here": blocks(plain.model), "kind": patches.layout_kind(plain.model)}
    os.environ[arming.PATCHES_ENV] = "force"
    forced = YOLOv10("yolov10m-doclayout.yaml")
    found |= {"forced": blocks(forced.model), "again": patches.patch_loaded(forced.model)}

    network = plain.model.eval()
    ours = copy.deepcopy(network)
    patches.patch_loaded(ours)
    with torch.inference_mode():
        x = torch.rand(1, 3, 128, 128)
        y, wanted = ours(x), network(x)

    pairs = list(zip(tensors(y), tensors(wanted), strict=True))
    found["outputs"] = len(pairs)
    found["difference"] = max(float((a - b).abs().max() / (1 + b.abs().max())) for a, b in pairs)
    page = numpy.full((160, 128, 3), 255, dtype=numpy.uint8)
    found["predicted"] = len(forced.predict([page], imgsz=128, conf=0.1, device="cpu", verbose=False))
    found["errors"] = arming.errors()
    print("FOUND", json.dumps(found))


main()
