"""What every operation checks or switches before it launches."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


def interpreting() -> bool:
    """True where Triton interprets its kernels on the CPU instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def require_inference(**tensors: torch.Tensor | None) -> None:
    """Raise RuntimeError if a gradient would be wanted: these kernels have no backward."""
    if torch.is_grad_enabled():
        for name, tensor in tensors.items():
            if tensor is not None and tensor.requires_grad:
                raise RuntimeError(f"{name}: requires a gradient, and this is inference only")


def require_gpu(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless a Triton kernel can run on the tensor's device."""
    if tensor.device.type != "cuda" and not (interpreting() and tensor.device.type == "cpu"):
        raise ValueError(f"{name}: a GPU tensor is needed, got one on {tensor.device}")


def on_device(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Launch on the tensor's device, which need not be the current one."""
    if tensor.device.type != "cuda" or tensor.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(tensor.device)


@contextmanager
def true_fp32(dtype: torch.dtype) -> Iterator[None]:
    """No TF32 in torch's own float32 matrix products and convolutions inside."""
    if dtype != torch.float32:
        yield
        return
    conv: Any
    exact: Any
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # torch >= 2.9, where the two spellings must not mix
        conv, name, exact = torch.backends.cudnn.conv, "fp32_precision", "ieee"  # type: ignore[attr-defined]
    else:
        conv, name, exact = torch.backends.cudnn, "allow_tf32", False
    before = getattr(matmul, name), getattr(conv, name)
    setattr(matmul, name, exact)
    setattr(conv, name, exact)
    try:
        yield
    finally:
        setattr(matmul, name, before[0])
        setattr(conv, name, before[1])
