"""The two models' problems with random data: what tuning and benchmarks run, check and time."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from pdfquarry_kernels import dilated_block, patch_embed
from pdfquarry_kernels.dilated_block import BlockWeights, ConvNorm
from pdfquarry_kernels.dispatch import DTYPES
from pdfquarry_kernels.search import Case
from pdfquarry_kernels.timing import device_us

TOLERANCE = {"bf16": 2e-2, "fp16": 3e-3, "fp32": 1e-5}  # of the norm, against float64
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


def random_block(
    channels: int,
    ksize: int,
    dilations: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int = 0,
) -> BlockWeights:
    """A dilated block with random weights that keep activations near unit size."""
    generator = torch.Generator().manual_seed(seed)

    def part(out: int, into: int, k: int) -> ConvNorm:
        norm = torch.nn.BatchNorm2d(out).eval().requires_grad_(False)
        assert norm.running_mean is not None and norm.running_var is not None
        norm.weight.uniform_(0.7, 1.3, generator=generator)
        norm.bias.normal_(0, 0.3, generator=generator)
        norm.running_mean.normal_(0, 0.3, generator=generator)
        norm.running_var.uniform_(0.5, 1.5, generator=generator)
        weight = torch.randn(out, into, k, k, generator=generator) / (into * k * k) ** 0.5
        return ConvNorm(weight.to(device, dtype), norm.to(device, dtype))

    c = channels
    dilated, pointwise = part(c, c, ksize), part(c, c, 1)
    return BlockWeights(dilated, pointwise, part(3 * c, 1, 1), part(c, 3, 1), dilations)


def float64_block(x: torch.Tensor, weights: BlockWeights) -> torch.Tensor:
    """The block's output computed by torch in float64 from the weights as they are stored."""

    def double(part: ConvNorm) -> ConvNorm:
        assert part.norm is not None
        norm = torch.nn.BatchNorm2d(part.weight.shape[0], eps=part.norm.eps).eval()
        norm.load_state_dict(part.norm.state_dict())
        return ConvNorm(part.weight.double(), norm.to(x.device, torch.float64))

    exact = BlockWeights(
        double(weights.dilated),
        double(weights.pointwise),
        double(weights.gate),
        double(weights.grouped),
        weights.dilations,
        weights.shortcut,
    )
    with torch.no_grad():
        return dilated_block.native(x.double(), exact)


DILATIONS = {5: (1, 2, 3), 3: (1, 3, 5)}  # of DocLayout-YOLO's two kinds of block, by kernel size


class Problem:
    """One case's tensors on the GPU, or on the CPU for tests.

    Args:
        case: what to run. Images are channels_last, as torch's 16-bit convolutions want them, and
            NCHW for float32, where those are faster so.
        device: where; ``us`` and what rests on it need a GPU.
    """

    def __init__(self, case: Case, device: torch.device | str = "cuda") -> None:
        dtype = TORCH_DTYPES[case.dtype]
        self.case = case
        if case.op == "patch_embed":
            m, n, k = case.shape
            self.ours = "triton_gemm"
            self.rivals: tuple[str, ...] = ("linear", "linear_aligned")
            self.x = torch.randn(m, k, device=device, dtype=dtype)
            self.weight = torch.randn(n, 3, 2, 14, k // 84, device=device, dtype=dtype) * 0.03
        else:
            images, c, h, w, ksize = case.shape
            self.ours, self.rivals = "triton", ("native", "phase_split", "unfold_gemm")
            self.x = torch.randn(images, c, h, w, device=device, dtype=dtype)
            if case.dtype != "fp32":
                self.x = self.x.contiguous(memory_format=torch.channels_last)
            self.block = random_block(c, ksize, DILATIONS[ksize], dtype, device)
        torch.backends.cudnn.benchmark = True

    def call(self, implementation: str, config: Any = None) -> Callable[[], torch.Tensor]:
        """A call of one implementation, with a configuration of one's own for the Triton ones."""
        if self.case.op == "patch_embed":
            if config is None:
                return lambda: patch_embed.patch_embed(self.x, self.weight, None, implementation)
            return lambda: patch_embed.triton_gemm(self.x, self.weight, None, config)
        if config is None:
            return lambda: dilated_block.dilated_block(self.x, self.block, implementation)
        return lambda: dilated_block.triton_block(self.x, self.block, self.x.dtype, config)

    @cached_property
    def reference(self) -> torch.Tensor:
        """The exact output, in float64."""
        if self.case.op == "patch_embed":
            return self.x.double() @ self.weight.double().flatten(1).T
        return float64_block(self.x, self.block)

    def error(self, result: torch.Tensor) -> float:
        """Relative error in the norm, against float64."""
        return float((result.double() - self.reference).norm() / self.reference.norm())

    def us(self, config: Any) -> float:
        """Median device time of our implementation with a configuration, in microseconds."""
        with torch.no_grad():
            return device_us(self.call(self.ours, config))

    def checked_us(self, config: Any, tolerance: float) -> float:
        """As ``us``; nan if the result is off by more than ``tolerance`` or the launch fails."""
        try:
            with torch.no_grad():
                error = self.error(self.call(self.ours, config)())
            return self.us(config) if error <= tolerance else float("nan")
        except (RuntimeError, OutOfResources) as failure:
            print(f"  dropped ({type(failure).__name__}): {config}")
            return float("nan")

    def rivals_us(self) -> dict[str, float]:
        """Median device times of torch's ways."""
        with torch.no_grad():
            return {name: device_us(self.call(name)) for name in self.rivals}
