"""The models that are profiled, each as its authors wrote it and with PDF Quarry's replacement; random weights."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pdfquarry_kernels import patches

VISION, YOLO, PADDLE = "Qwen2-VL vision tower", "DocLayout-YOLO", "PP-DocLayoutV2"
BLOCKS = "DocLayout-YOLO's eight dilated blocks"


@dataclass
class Subject:
    """One model in one state.

    Attributes:
        model: its name.
        state: ``as written``, ``patched``, or ``left alone``.
        note: what exactly it is.
        forward: runs it once.
        patch: how the name of its patch in ``patches.list_patches`` begins; empty if there is none.
    """

    model: str
    state: str
    note: str
    forward: Callable[[], object]
    patch: str = ""


def vision(device: torch.device, small: bool) -> Iterator[Subject]:
    """MinerU2.5's vision tower with one page of 1036 x 1036 pixels; without transformers its patch embedding alone."""
    dtype = torch.float32 if small else torch.bfloat16
    side, sizes = (8, {"depth": 2, "embed_dim": 160, "num_heads": 4}) if small else (74, {})
    x = torch.randn(side * side, 1176, device=device, dtype=dtype)
    tower: Any
    try:
        from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
        from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
    except ImportError as error:
        proj = torch.nn.Conv3d(3, sizes.get("embed_dim", 1280), (2, 14, 14), (2, 14, 14), bias=False)
        proj = proj.to(device, dtype).requires_grad_(False)
        what = f"its patch embedding alone, {side * side} patches, {_name(dtype)} (transformers: {error})"
        yield Subject(VISION, "as written", what, lambda: proj(x.view(-1, 3, 2, 14, 14)), "vLLM")
        yield Subject(VISION, "patched", what, lambda: _embed(proj, x), "vLLM")
        return
    torch.manual_seed(0)
    with torch.device(device):
        tower = Qwen2VisionTransformerPretrainedModel(Qwen2VLVisionConfig(**sizes))
    tower = tower.to(device, dtype).eval().requires_grad_(False)
    grid = torch.tensor([[1, side, side]], device=device)
    depth = tower.config.depth
    what = f"{depth} layers of {tower.config.embed_dim}, {side * side} patches, {_name(dtype)}"
    proj = tower.patch_embed.proj
    yield Subject(VISION, "as written", what, lambda: tower(x, grid_thw=grid), "vLLM")
    tower.patch_embed.forward = partial(_embed, proj)
    yield Subject(VISION, "patched", what, lambda: tower(x, grid_thw=grid), "vLLM")


def _embed(proj: torch.nn.Conv3d, x: torch.Tensor) -> torch.Tensor:
    from pdfquarry_kernels.patch_embed import patch_embed

    implementation = "auto" if x.device.type == "cuda" else "linear"
    return patch_embed(x.to(proj.weight.dtype), proj.weight, proj.bias, implementation)


def doclayout_yolo(device: torch.device, small: bool) -> Iterator[Subject]:
    """DocLayout-YOLO's network with one page; without the package its dilated blocks alone."""
    dtype, side = (torch.float32, 128) if small else (torch.float16, 1024)
    network: Any
    try:
        from doclayout_yolo.nn.tasks import YOLOv10DetectionModel
    except Exception as error:  # absent, or at odds with its own dependencies
        yield from _blocks(device, dtype, side, f"doclayout-yolo: {error}")
        return
    torch.manual_seed(0)
    network = YOLOv10DetectionModel("yolov10m-doclayout.yaml", nc=10, verbose=False)
    network = network.to(device, dtype, memory_format=torch.channels_last).eval().requires_grad_(False)
    x = torch.rand(1, 3, side, side, device=device, dtype=dtype).contiguous(memory_format=torch.channels_last)
    what = f"yolov10m-doclayout, {side} x {side} pixels, {_name(dtype)}, channels_last"
    yield Subject(YOLO, "as written", what, lambda: network(x), YOLO)
    patches.patch_loaded(network)
    yield Subject(YOLO, "patched", what, lambda: network(x), YOLO)


def _blocks(device: torch.device, dtype: torch.dtype, side: int, why: str) -> Iterator[Subject]:
    from pdfquarry_kernels.dilated_block import dilated_block, native
    from pdfquarry_kernels.problems import DILATIONS, random_block

    inputs = []
    for channels, ksize, scale in ((96, 5, 8), (192, 3, 16)):
        x = torch.randn(1, channels, side // scale, side // scale, device=device, dtype=dtype)
        x = x.contiguous(memory_format=torch.channels_last)
        for seed in range(4):
            inputs.append((x, random_block(channels, ksize, DILATIONS[ksize], dtype, device, seed)))
    what = f"its dilated blocks at {side} x {side} pixels, {_name(dtype)}, channels_last ({why})"
    yield Subject(BLOCKS, "as written", what, lambda: [native(x, block) for x, block in inputs], YOLO)
    implementation = "auto" if device.type == "cuda" else "native"
    yield Subject(BLOCKS, "patched", what, lambda: [dilated_block(x, b, implementation) for x, b in inputs], YOLO)


def pp_doclayout(device: torch.device, small: bool) -> Iterator[Subject]:
    """The layout model of MinerU >= 3, in float32 as MinerU loads it."""
    from transformers import PPDocLayoutV2Config, PPDocLayoutV2ForObjectDetection

    torch.manual_seed(0)
    labels, side = 25, 160 if small else 800
    config: Any = PPDocLayoutV2Config(num_labels=labels, num_queries=30 if small else 300)
    # Several labels share a class of the reading order's network, and an index beyond them is out of its table.
    classes = config.reading_order_config.num_classes
    config.class_thresholds, config.class_order = [0.5] * labels, [label % classes for label in range(labels)]
    model: Any = PPDocLayoutV2ForObjectDetection(config).to(device).eval().requires_grad_(False)
    x = torch.rand(1, 3, side, side, device=device)
    kind = patches.layout_kind(model)
    what = f"recognised as {kind}; {side} x {side} pixels, float32"
    yield Subject(PADDLE, "left alone", what, lambda: model(pixel_values=x))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


MODELS = {VISION: vision, YOLO: doclayout_yolo, PADDLE: pp_doclayout}
