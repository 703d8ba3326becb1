"""What a configuration launches, written down for ahead-of-time compilation. Needs triton only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pdfquarry_kernels.aot import Launch
from pdfquarry_kernels.dilated_block_jit import conv_kernel, fused_block_kernel, tail_kernel
from pdfquarry_kernels.hopper_jit import block_tma_kernel, gemm_tma_kernel
from pdfquarry_kernels.patch_embed_jit import gemm_kernel

_VECTORS = ("shift", "shift2", "gate", "gate_shift", "w3", "shift3")
LAUNCH_OPTIONS = ("num_warps", "num_stages")


@dataclass(frozen=True)
class Work:
    """One launch, with the work that one of its programs does.

    Attributes:
        launch: what to compile.
        programs: how many programs the grid has.
        macs: multiply-adds of the hot loop, in one program, padding included.
        steps: trips of the hot loop in one program.
        outputs: size of one matrix product's result in it.
        is_gemm: whether every global load of the hot loop must be 128 bits wide.
    """

    launch: Launch
    programs: int
    macs: int
    steps: int
    outputs: int
    is_gemm: bool


def _options(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in LAUNCH_OPTIONS} | dict(config.get("options", {}))


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def patch_embed_work(
    config: Mapping[str, Any], dtype: str, m: int, n: int, k: int, processors: int = 132
) -> list[Work]:
    """The launch of ``triton_gemm`` for x [m, k] and weight [n, k], without bias (as MinerU2.5).

    Args:
        config: an entry's ``config``.
        dtype: ``bf16``, ``fp16`` or ``fp32``.
        processors: how many the card has (the persistent variant's grid).
    """
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    constants = {"N": n, "K": k, "HAS_BIAS": False, "GROUP_M": config["GROUP_M"]}
    constants |= {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k}
    if config["kernel"] == "tma":
        fn = gemm_tma_kernel
        constants["PROGRAMS"] = processors * config["programs_per_processor"]
        pointers = {
            "x": f"{dtype}[{block_m},{block_k}]",
            "w": f"{dtype}[{block_n},{block_k}]",
            "y": f"{dtype}[{block_m},{block_n // 2}]",
            "b": dtype,
        }
    else:
        fn = gemm_kernel
        constants |= {"X_STRIDE": k, "UPCAST": False}
        pointers = dict.fromkeys(("x", "w", "b", "y"), dtype)
    steps = _ceil(k, block_k)
    return [
        Work(
            Launch(fn, pointers, {"M": m}, constants, _options(config)),
            programs=_ceil(m, block_m) * _ceil(n, block_n),
            macs=block_m * block_n * block_k * steps,
            steps=steps,
            outputs=block_m * block_n,
            is_gemm=True,
        )
    ]


def dilated_block_work(
    config: Mapping[str, Any], dtype: str, images: int, c: int, h: int, w: int, ksize: int
) -> list[Work]:
    """The launches of the block's ``triton`` for a channels_last image [images, c, h, w]."""
    tile_h, tile_w = config["TILE_H"], config["TILE_W"]
    tiles = images * _ceil(h, tile_h) * _ceil(w, tile_w)
    scalars = {"H": h, "W": w, "PIXELS": images * h * w, "HW": h * w, "D0": 1, "D1": 2, "D2": 3}
    floats = dict.fromkeys(_VECTORS, "fp32")
    halves = dict.fromkeys(("x", "shortcut", "w", "w2", "y", "out"), dtype)
    third, taps = c // 3, ksize * ksize
    tile = {"TILE_H": tile_h, "TILE_W": tile_w, "KSIZE": ksize}
    layout: dict[str, Any] = {"ADD": True, "NHWC": True}
    if config["kernel"] != "two_step":
        layout["BLOCK_O"] = config["BLOCK_O"]
        fn, constants = fused_block_kernel, tile | layout | {"G": third, "UPCAST": False}
        if config["kernel"] == "tma":
            fn, constants = block_tma_kernel, tile | layout | {"G": third}
            halves["x"] = f"{dtype}[1,{tile_h},{tile_w},{third}]"
            halves["w"] = f"{dtype}[{third},{third}]"
        launch = Launch(fn, floats | halves, scalars, constants, _options(config))
        macs = tile_h * tile_w * c * c * (taps + 1)  # the 1x1 counts as one more tap
        outputs = tile_h * tile_w * third
        return [Work(launch, 3 * tiles, macs, 3 * (taps + 1), outputs, is_gemm=False)]
    block_n, block_c = config["BLOCK_N"], config["BLOCK_C"]
    constants = tile | {"C": c, "UPCAST": False, "BLOCK_N": block_n, "BLOCK_C": block_c}
    steps = taps * _ceil(c, block_c)
    conv = Work(
        Launch(conv_kernel, floats | halves, scalars, constants, _options(config)),
        programs=3 * tiles * _ceil(c, block_n),
        macs=tile_h * tile_w * block_n * block_c * steps,
        steps=steps,
        outputs=tile_h * tile_w * block_n,
        is_gemm=False,
    )
    tail = config["tail"]
    blocks = {name: tail[name] for name in ("BLOCK_P", "BLOCK_O", "BLOCK_C")}
    constants = blocks | layout | {"C": c, "UPCAST": False}
    steps = _ceil(c, tail["BLOCK_C"])
    return [
        conv,
        Work(
            Launch(tail_kernel, floats | halves, scalars, constants, _options(tail)),
            programs=3 * _ceil(images * h * w, tail["BLOCK_P"]) * _ceil(third, tail["BLOCK_O"]),
            macs=3 * tail["BLOCK_P"] * tail["BLOCK_O"] * tail["BLOCK_C"] * steps,
            steps=3 * steps,
            outputs=tail["BLOCK_P"] * tail["BLOCK_O"],
            is_gemm=False,
        ),
    ]
