"""The patch embedding of Qwen2-VL style vision towers: a Conv3d whose kernel equals its stride.

Such a convolution is one matrix product, ``y[m] = W x[m] + b`` over flattened patches; MIOpen has
no fast kernel for it as a Conv3d. Implementations, by name:

* ``conv3d``: torch's Conv3d, as the models were written.
* ``linear``: torch's linear on the flattened weight (hipBLASLt, rocBLAS, cuBLAS).
* ``linear_aligned``: the same on a padded copy of the weight (``aligned`` says why).
* ``triton_gemm``: a tiled product with matrix instructions, in the variant and block sizes that
  the configuration names.
* ``triton_dot``: multiplies and adds, no matrix instructions; any strides. The fallback.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton

from pdfquarry_kernels import guards
from pdfquarry_kernels.aligned import aligned_weight
from pdfquarry_kernels.dispatch import DTYPES, choose
from pdfquarry_kernels.hopper import patch_embed_tma, takes_descriptors
from pdfquarry_kernels.patch_embed_jit import dot_kernel, gemm_kernel

IMPLEMENTATIONS = ("conv3d", "linear", "linear_aligned", "triton_gemm", "triton_dot")
MAX_ROW_STRIDE = 2**31 // 256  # 256 rows are the tallest tile
TORCH_ONLY = ("conv3d", "linear", "linear_aligned")


def patch_embed(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    implementation: str = "auto",
) -> torch.Tensor:
    """Embed patches: Conv3d with stride == kernel size, applied to ready-cut patches.

    Args:
        x: [L, C*T*P*P] or [L, C, T, P, P]; bfloat16, float16 or float32; any strides; L may be 0.
        weight: [E, C, T, P, P], same dtype and device.
        bias: [E], same dtype and device, or None.
        implementation: one of ``IMPLEMENTATIONS``, or "auto" for what ``dispatch.choose`` names.

    Returns:
        [L, E], contiguous, in the dtype of x, accumulated in float32 (float32 stays float32: TF32
        is never used).

    Raises:
        ValueError: a shape, device or implementation does not fit; a CPU tensor where a GPU is
            needed ("auto", "triton_gemm", "triton_dot").
        TypeError: a dtype does not fit.
        RuntimeError: a gradient is asked for; this is inference only.
    """
    guards.require_inference(x=x, weight=weight, bias=bias)
    _check(x, weight, bias, implementation)
    result: torch.Tensor = torch.ops.pdfquarry.patch_embed(x, weight, bias, implementation)
    return result


def _check(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, implementation: str) -> None:
    if implementation != "auto" and implementation not in IMPLEMENTATIONS:
        names = ", ".join(("auto", *IMPLEMENTATIONS))
        raise ValueError(f"implementation: one of {names} is needed, got {implementation!r}")
    if weight.ndim != 5 or weight.shape[3] != weight.shape[4]:
        raise ValueError(f"weight: [E, C, T, P, P] is needed, got {list(weight.shape)}")
    patch = weight.shape[1:]
    if not (x.ndim == 2 and x.shape[1] == patch.numel()) and x.shape[1:] != patch:
        raise ValueError(
            f"x: [L, {patch.numel()}] or [L, {', '.join(map(str, patch))}] is needed"
            f" for this weight, got {list(x.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias: [{weight.shape[0]}] is needed, got {list(bias.shape)}")
    if x.dtype not in DTYPES:
        raise TypeError(f"x: bfloat16, float16 or float32 is needed, got {x.dtype}")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != x.dtype:
            raise TypeError(f"{name}: is {tensor.dtype} while x is {x.dtype}")
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name}: is on {tensor.device} while x is on {x.device}")
    if implementation not in TORCH_ONLY:
        guards.require_gpu("x", x)


def _conv3d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, _config: Any) -> torch.Tensor:
    with guards.true_fp32(x.dtype):
        y = F.conv3d(x.reshape(-1, *weight.shape[1:]), weight, bias, stride=weight.shape[2:])
    return y.flatten(1).contiguous()


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, _config: Any) -> torch.Tensor:
    with guards.true_fp32(x.dtype):
        return F.linear(x.reshape(x.shape[0], -1), weight.reshape(weight.shape[0], -1), bias)


def _linear_aligned(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, _config: Any) -> torch.Tensor:
    with guards.true_fp32(x.dtype):
        return F.linear(x.reshape(x.shape[0], -1), aligned_weight(weight), bias)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """[rows, K] with unit stride along K and a base that 16-byte loads can start from.

    Rows so far apart that offsets inside a tile would need 64 bits are copied too.
    """
    flat = tensor.reshape(tensor.shape[0], -1)
    if flat.stride(1) != 1 or flat.stride(0) > MAX_ROW_STRIDE:
        flat = flat.contiguous()
    return flat.clone() if flat.data_ptr() % 16 else flat


def triton_gemm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, config: Any) -> torch.Tensor:
    """``triton_gemm`` with a given configuration, unchecked."""
    rows = _rows(x)
    if config["kernel"] == "tma" and takes_descriptors(rows):
        return patch_embed_tma(rows, weight, bias, config)
    w = _rows(weight.contiguous())
    m, n, k = rows.shape[0], *w.shape
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    with guards.on_device(x):
        gemm_kernel[(triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)](
            rows,
            w,
            w if bias is None else bias.contiguous(),
            y,
            m,
            N=n,
            K=k,
            X_STRIDE=rows.stride(0),
            HAS_BIAS=bias is not None,
            UPCAST=guards.interpreting(),
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            GROUP_M=config["GROUP_M"],
            num_warps=config["num_warps"],
            num_stages=config["num_stages"],
            **config.get("options", {}),
        )
    return y


def _triton_dot(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, _config: Any) -> torch.Tensor:
    patches = x if x.ndim == 5 else x.unflatten(1, weight.shape[1:])
    (m, c, t, p, _), n = patches.shape, weight.shape[0]
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    block_m, block_n, block_k = 16, 16, 32
    with guards.on_device(x):
        dot_kernel[(triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)](
            patches,
            weight,
            weight if bias is None else bias.contiguous(),
            y,
            m,
            *patches.stride(),
            *weight.stride(),
            N=n,
            C=c,
            T=t,
            P=p,
            HAS_BIAS=bias is not None,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            num_warps=4,
        )
    return y


_RUN: dict[str, Callable[..., torch.Tensor]] = {
    "conv3d": _conv3d,
    "linear": _linear,
    "linear_aligned": _linear_aligned,
    "triton_gemm": triton_gemm,
    "triton_dot": _triton_dot,
}


def _patch_embed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, implementation: str) -> torch.Tensor:
    m, n = x.shape[0], weight.shape[0]
    if m == 0:
        return x.new_empty((0, n))
    choice = choose("patch_embed", (m, n, weight[0].numel()), x.dtype, x.device)
    name = choice.implementation if implementation == "auto" else implementation
    return _RUN[name](x, weight, bias, choice.config)


def _patch_embed_fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, implementation: str
) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


# A torch operator, so that torch.compile and graph capture take the call as it is. Registered by
# hand rather than with torch.library.custom_op, whose wrapper costs several microseconds a call.
_LIBRARY = torch.library.Library("pdfquarry", "DEF")
_LIBRARY.define("patch_embed(Tensor x, Tensor weight, Tensor? bias, str implementation) -> Tensor")
for _key in ("CUDA", "CPU"):
    _LIBRARY.impl("patch_embed", _patch_embed, _key)
torch.library.register_fake("pdfquarry::patch_embed", _patch_embed_fake, lib=_LIBRARY)
