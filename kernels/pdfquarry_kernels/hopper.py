"""Launching Hopper's variants of the kernels."""

from functools import lru_cache
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from pdfquarry_kernels import guards
from pdfquarry_kernels.aligned import aligned_weight
from pdfquarry_kernels.hopper_jit import block_tma_kernel, gemm_tma_kernel


@lru_cache(maxsize=16)
def processors(device: torch.device) -> int:
    """How many multiprocessors a card has."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def takes_descriptors(rows: torch.Tensor) -> bool:
    """True if the copy engine can read [rows, K]: 16-bit elements, 16-byte base and row stride."""
    return (
        rows.dtype in (torch.float16, torch.bfloat16)
        and rows.stride(0) * rows.element_size() % 16 == 0
        and rows.data_ptr() % 16 == 0
        and rows.device.type == "cuda"
    )


def describe(tensor: torch.Tensor, block: list[int]) -> TensorDescriptor:
    """A descriptor of a whole tensor, read in blocks of the given shape (some 4 us on the host)."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)


def patch_embed_tma(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, config: Any) -> torch.Tensor:
    """``patch_embed`` through descriptors; rows [M, K] for which ``takes_descriptors`` holds."""
    w = aligned_weight(weight)
    m, n, k = rows.shape[0], *w.shape
    y = torch.empty((m, n), dtype=rows.dtype, device=rows.device)
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n)
    programs = processors(rows.device) * config["programs_per_processor"]
    with guards.on_device(rows):
        gemm_tma_kernel[(min(tiles, programs),)](
            describe(rows, [block_m, block_k]),
            describe(w, [block_n, block_k]),
            w if bias is None else bias.contiguous(),
            describe(y, [block_m, block_n // 2]),
            m,
            N=n,
            K=k,
            HAS_BIAS=bias is not None,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            GROUP_M=config["GROUP_M"],
            PROGRAMS=programs,
            num_warps=config["num_warps"],
            num_stages=config["num_stages"],
        )
    return y


def block_tma(
    image: torch.Tensor,
    arguments: tuple[Any, ...],
    dilations: tuple[int, int, int],
    constants: dict[str, Any],
    grid: tuple[int, int],
    launch: dict[str, Any],
) -> None:
    """Launch ``block_tma_kernel`` on a channels_last image [N, C, H, W].

    arguments: (shortcut, w, ...) as ``fused_block_kernel`` takes them after x.
    """
    shortcut, w, *rest = arguments
    third = constants["G"]
    block = [1, constants["TILE_H"], constants["TILE_W"], third]
    block_tma_kernel[grid](
        describe(image.permute(0, 2, 3, 1), block),
        shortcut,
        describe(w, [third, third]),
        *rest,
        *dilations,
        **constants,
        **launch,
    )
