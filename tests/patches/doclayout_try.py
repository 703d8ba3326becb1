"""Loads a real doclayout-yolo model (random weights) with the patches armed; prints what was found as JSON."""

import copy
import json
import os

import numpy
import torch

from doclayout import declare_torchvision_operators
from pdfquarry_kernels import arming, patches, subjects
from pdfquarry_kernels.doclayout import FastDilatedBlock


def blocks(model: torch.nn.Module) -> int:
    return sum(isinstance(part, FastDilatedBlock) for part in model.modules())


def tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [tensor for part in inside for tensor in tensors(part)]


def main() -> None:
    declare_torchvision_operators()
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
    profiled = list(subjects.doclayout_yolo(torch.device("cpu"), small=True))
    found["profiled"] = [f"{subject.model}, {subject.state}" for subject in profiled if subject.forward()]
    found["errors"] = arming.errors()
    print("FOUND", json.dumps(found))


main()
