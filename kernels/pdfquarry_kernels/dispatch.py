"""Which implementation runs: ``choose`` answers it from the configurations, for one call."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from pdfquarry_kernels import configs

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


class Choice(NamedTuple):
    """What runs and why.

    implementation: its name, as the operation's ``implementation`` argument takes it.
    config: block sizes and launch options of the Triton implementation (also if torch's runs).
    source: the file that says so, or ``built-in``.
    evidence: ``measured``, ``compiler model``, or ``none`` for built-in.
    """

    implementation: str
    config: Mapping[str, Any]
    source: str
    evidence: str


@lru_cache(maxsize=16)
def arch_of(device: torch.device) -> str:
    """``gfx1100`` or ``sm_90`` for a GPU, ``cpu`` for the CPU (Triton's interpreter)."""
    if device.type == "cpu":
        return "cpu"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def take_device(arch: str) -> torch.device:
    """The first device of an architecture, made torch's current one; ``cpu`` is one, and "" takes the current GPU.

    Raises:
        ValueError: torch sees no such device.
    """
    if arch == "cpu":
        return torch.device("cpu")
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    first = torch.cuda.current_device() if devices and not arch else 0
    fitting = [device for device in devices[first:] if arch in ("", arch_of(device))]
    if not fitting:
        raise ValueError(f"arch: torch sees no {arch or 'GPU'} here, only {[arch_of(d) for d in devices] or 'the CPU'}")
    torch.cuda.set_device(fitting[0])
    return fitting[0]


@lru_cache(maxsize=1024)
def _choose(op: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Choice:
    if op == "patch_embed":
        size, n, k = shape
        fixed = {"N": n, "K": k}
    elif op == "dilated_block":
        images, channels, height, width, ksize = shape
        size, fixed = images * height * width, {"C": channels, "KSIZE": ksize}
    else:
        raise ValueError(f"op: 'patch_embed' or 'dilated_block' is needed, got {op!r}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype: bfloat16, float16 or float32 is needed, got {dtype}")
    found = configs.lookup(arch_of(device), op, DTYPES[dtype], fixed, size)
    return Choice(found.entry["use"], found.entry["config"], found.source, found.evidence)


def choose(op: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Choice:
    """The implementation and configuration that run for a call.

    Args:
        op: ``patch_embed`` or ``dilated_block``.
        shape: (M, N, K) of the patch embedding; (N, C, H, W, kernel size) of the dilated block.
        dtype: of the input.
        device: the card. Answers are kept: after changing a file or ``PDFQUARRY_KERNEL_CONFIGS``,
            call ``forget()``.

    Raises:
        ValueError: unknown op or dtype, or a damaged configuration file.
    """
    return _choose(op, tuple(shape), dtype, torch.device(device))


def forget() -> None:
    """Read the configurations again at the next call."""
    _choose.cache_clear()
