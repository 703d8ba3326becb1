"""DocLayout-YOLO's dilated block: one shared convolution at three dilations, a gate, a residual.

MIOpen has no fast kernel for dilated convolutions on RDNA. Four implementations, by name:

* ``native``: torch's operators, as the model was written (three ``F.conv2d``).
* ``triton``: our kernels; the whole block in one launch where registers allow, else in two.
* ``phase_split``: a convolution with dilation d is d*d ordinary ones on every d-th row and column.
* ``unfold_gemm``: unfold and one matrix product.

The last two use torch for the convolutions and our kernel for all that follows them.
``dilated_block_jit`` gives the formulas.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
import triton

from pdfquarry_kernels import guards
from pdfquarry_kernels.dilated_block_jit import conv_kernel, fused_block_kernel, tail_kernel
from pdfquarry_kernels.dispatch import DTYPES, choose
from pdfquarry_kernels.hopper import block_tma

IMPLEMENTATIONS = ("native", "triton", "phase_split", "unfold_gemm")
TAIL = {"BLOCK_P": 64, "BLOCK_O": 32, "BLOCK_C": 32, "num_warps": 4, "num_stages": 1}


@dataclass
class ConvNorm:
    """A convolution, the batch norm (in inference) that follows it, and SiLU.

    Attributes:
        weight: [out, in / groups, k, k].
        norm: the batch norm, or None where it has been folded into weight and bias.
        bias: [out], or None.
    """

    weight: torch.Tensor
    norm: torch.nn.BatchNorm2d | None
    bias: torch.Tensor | None = None

    def after(self, convolved: torch.Tensor) -> torch.Tensor:
        """Bias, batch norm and SiLU of an image that is convolved already."""
        if self.bias is not None:
            convolved = convolved + self.bias.view(-1, 1, 1)
        n = self.norm
        if n is not None:
            convolved = F.batch_norm(convolved, n.running_mean, n.running_var, n.weight, n.bias, eps=n.eps)
        return F.silu(convolved)

    def folded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and shift with the batch norm folded in, in float64."""
        weight = self.weight.detach().double()
        shift = weight.new_zeros(weight.shape[0])
        if self.bias is not None:
            shift = self.bias.detach().double()
        n = self.norm
        if n is None:
            return weight, shift
        assert n.running_mean is not None and n.running_var is not None
        scale = n.weight.detach().double() / torch.sqrt(n.running_var.double() + n.eps)
        shift = n.bias.detach().double() + (shift - n.running_mean.double()) * scale
        return weight * scale.view(-1, 1, 1, 1), shift

    def tensors(self) -> list[torch.Tensor]:
        """Everything that ``folded`` reads."""
        n = self.norm
        found = [self.weight, self.bias]
        if n is not None:
            found += [n.weight, n.bias, n.running_mean, n.running_var]
        return [tensor for tensor in found if tensor is not None]


@dataclass
class Prepared:
    """A block's weights as the kernels read them (layouts: ``dilated_block_jit``)."""

    w: torch.Tensor
    w2: torch.Tensor
    shift: torch.Tensor
    shift2: torch.Tensor
    gate: torch.Tensor
    gate_shift: torch.Tensor
    w3: torch.Tensor
    shift3: torch.Tensor

    def vectors(self) -> tuple[torch.Tensor, ...]:
        """The arguments from ``w2`` on, in the kernels' order."""
        return self.w2, self.shift2, self.gate, self.gate_shift, self.w3, self.shift3


@dataclass
class BlockWeights:
    """The weights of one dilated block.

    Attributes:
        dilated: weight [C, C, k, k], k odd, shared by the three dilations; C a multiple of 3.
        pointwise: weight [C, C, 1, 1].
        gate: weight [3C, 1, 1, 1].
        grouped: weight [C, 3, 1, 1].
        dilations: three of them.
        shortcut: whether the input is added.
    """

    dilated: ConvNorm
    pointwise: ConvNorm
    gate: ConvNorm
    grouped: ConvNorm
    dilations: tuple[int, int, int]
    shortcut: bool = True
    _prepared: dict[Any, Prepared] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        c, _, k, _ = self.dilated.weight.shape
        expected = {
            "dilated": (c, c, k, k),
            "pointwise": (c, c, 1, 1),
            "gate": (3 * c, 1, 1, 1),
            "grouped": (c, 3, 1, 1),
        }
        for name, shape in expected.items():
            actual = tuple(getattr(self, name).weight.shape)
            if actual != shape:
                raise ValueError(f"{name}: weight {shape} is needed, got {actual}")
        if c % 3 or k % 2 == 0:
            raise ValueError(f"dilated: C % 3 == 0 and an odd k are needed, got C={c}, k={k}")
        if len(self.dilations) != 3 or min(self.dilations) < 1:
            raise ValueError(f"dilations: three positive ones are needed, got {self.dilations}")

    @property
    def channels(self) -> int:
        return self.dilated.weight.shape[0]

    @property
    def ksize(self) -> int:
        return self.dilated.weight.shape[2]

    def prepare(self, dtype: torch.dtype) -> Prepared:
        """Folded, permuted weights in ``dtype``; made again when the module's weights change."""
        parts = (self.dilated, self.pointwise, self.gate, self.grouped)
        state = tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for part in parts for t in part.tensors())
        if (dtype, state) not in self._prepared:
            self._prepared = {(dtype, state): self._fold(dtype)}
        return self._prepared[dtype, state]

    def _fold(self, dtype: torch.dtype) -> Prepared:
        c, third = self.channels, self.channels // 3
        w, shift = self.dilated.folded()
        w2, shift2 = self.pointwise.folded()
        gate, gate_shift = self.gate.folded()
        w3, shift3 = self.grouped.folded()

        def by_partner(v: torch.Tensor) -> torch.Tensor:  # [3C] in stack order to [dilation, j, o]
            return v.reshape(3, third, 3).transpose(1, 2).float().contiguous()

        return Prepared(
            w=w.permute(2, 3, 0, 1).reshape(-1, c).to(dtype).contiguous(),
            w2=w2.view(third, 3, c).transpose(0, 1).to(dtype).contiguous(),
            shift=shift.float(),
            shift2=shift2.view(third, 3).t().float().contiguous(),
            gate=by_partner(gate),
            gate_shift=by_partner(gate_shift),
            w3=by_partner(w3),
            shift3=shift3.float(),
        )


def dilated_block(
    x: torch.Tensor,
    weights: BlockWeights,
    implementation: str = "auto",
    compute_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Run one dilated block.

    Args:
        x: [N, C, H, W], any sizes, NCHW or channels_last; bfloat16, float16 or float32.
        weights: in the dtype and on the device of x.
        implementation: one of ``IMPLEMENTATIONS``, or "auto" for what ``dispatch.choose`` names.
        compute_dtype: the type that the Triton kernels multiply in; None is that of x. float16
            with a float32 x is faster and good to about 1e-3; float32 is never TF32.

    Returns:
        [N, C, H, W] in the dtype and memory format of x.

    Raises:
        ValueError: a shape, device or implementation does not fit.
        TypeError: a dtype does not fit.
        RuntimeError: a gradient is asked for; this is inference only.
    """
    guards.require_inference(x=x, weights=weights.dilated.weight)
    _check(x, weights, implementation, compute_dtype)
    dtype = compute_dtype or x.dtype
    n, c, h, w = x.shape
    choice = choose("dilated_block", (n, c, h, w, weights.ksize), dtype, x.device)
    name = choice.implementation if implementation == "auto" else implementation
    with torch.no_grad(), guards.true_fp32(dtype):
        if name == "native":
            return native(x, weights)
        guards.require_gpu("x", x)
        if x.numel() == 0:
            return torch.empty_like(x)
        if name == "triton":
            return triton_block(x, weights, dtype, choice.config)
        convolve = _phase_split if name == "phase_split" else _unfold_gemm
        return _torch_convolutions(x, weights, dtype, convolve, choice.config)


def _check(
    x: torch.Tensor,
    weights: BlockWeights,
    implementation: str,
    compute_dtype: torch.dtype | None,
) -> None:
    if implementation != "auto" and implementation not in IMPLEMENTATIONS:
        names = ", ".join(("auto", *IMPLEMENTATIONS))
        raise ValueError(f"implementation: one of {names} is needed, got {implementation!r}")
    if x.ndim != 4 or x.shape[1] != weights.channels:
        raise ValueError(f"x: [N, {weights.channels}, H, W] is needed, got {list(x.shape)}")
    if x.dtype not in DTYPES:
        raise TypeError(f"x: bfloat16, float16 or float32 is needed, got {x.dtype}")
    if compute_dtype is not None and compute_dtype not in DTYPES:
        raise TypeError(f"compute_dtype: a 16- or 32-bit float is needed, got {compute_dtype}")
    weight = weights.dilated.weight
    if weight.dtype != x.dtype:
        raise TypeError(f"weights: are {weight.dtype} while x is {x.dtype}")
    if weight.device != x.device:
        raise ValueError(f"weights: are on {weight.device} while x is on {x.device}")


def native(x: torch.Tensor, weights: BlockWeights) -> torch.Tensor:
    """The block by torch's operators, in any float type, unchecked."""
    c, k = weights.channels, weights.ksize
    branches = []
    for d in weights.dilations:
        y = F.conv2d(x, weights.dilated.weight, padding=d * (k // 2), dilation=d)
        y = weights.dilated.after(y)
        branches.append(weights.pointwise.after(F.conv2d(y, weights.pointwise.weight)))
    z = torch.cat(branches, dim=1)
    z = z * torch.sigmoid(weights.gate.after(F.conv2d(z, weights.gate.weight, groups=3 * c)))
    out = weights.grouped.after(F.conv2d(z, weights.grouped.weight, groups=c))
    return x + out if weights.shortcut else out


def _phase_split(x: torch.Tensor, weight: torch.Tensor, d: int) -> torch.Tensor:
    """``F.conv2d(x, weight, padding=d*(k//2), dilation=d)`` as one ordinary batched convolution.

    Row d i + a of the output reads rows d (i + t - k//2) + a of the input only: the d*d phases
    (a, b) never mix, and zero padding stays zero padding inside a phase.
    """
    n, c, h, w = x.shape
    rows, cols = -(-h // d), -(-w // d)
    padded = F.pad(x, (0, cols * d - w, 0, rows * d - h))
    phases = padded.reshape(n, c, rows, d, cols, d).permute(0, 3, 5, 1, 2, 4)
    phases = phases.reshape(n * d * d, c, rows, cols)
    if x.is_contiguous(memory_format=torch.channels_last):
        phases = phases.contiguous(memory_format=torch.channels_last)
    y = F.conv2d(phases, weight, padding=weight.shape[-1] // 2)
    y = y.reshape(n, d, d, -1, rows, cols).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(n, -1, rows * d, cols * d)[..., :h, :w]


def _unfold_gemm(x: torch.Tensor, weight: torch.Tensor, d: int) -> torch.Tensor:
    k = weight.shape[-1]
    columns = F.unfold(x, k, dilation=d, padding=d * (k // 2))
    return (weight.flatten(1) @ columns).view(x.shape[0], -1, *x.shape[2:])


def _torch_convolutions(
    x: torch.Tensor,
    weights: BlockWeights,
    dtype: torch.dtype,
    convolve: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor],
    config: Any,
) -> torch.Tensor:
    weight = weights.dilated.weight.to(dtype)
    image = x.to(dtype)
    branches = [weights.dilated.after(convolve(image, weight, d).to(x.dtype)) for d in weights.dilations]
    y = torch.stack([b.to(dtype).permute(0, 2, 3, 1).flatten(0, 2) for b in branches])
    return _tail(y, x, weights, dtype, config.get("tail", TAIL))


def _destination(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """x in one of the two layouts that the kernels write, an output like it, and which it is."""
    nhwc = x.is_contiguous(memory_format=torch.channels_last)
    shortcut = x if nhwc else x.contiguous()
    return shortcut, torch.empty_like(shortcut), nhwc


def triton_block(x: torch.Tensor, weights: BlockWeights, dtype: torch.dtype, config: Any) -> torch.Tensor:
    """The block by our kernels with a given configuration, unchecked."""
    image = x.to(dtype).contiguous(memory_format=torch.channels_last)
    n, c, h, w = x.shape
    prepared = weights.prepare(dtype)
    tiles = n * triton.cdiv(h, config["TILE_H"]) * triton.cdiv(w, config["TILE_W"])
    launch = {"num_warps": config["num_warps"], "num_stages": config["num_stages"]}
    launch |= config.get("options", {})
    tile = {"TILE_H": config["TILE_H"], "TILE_W": config["TILE_W"]}
    if config["kernel"] == "two_step":
        y = torch.empty((3, n * h * w, c), dtype=dtype, device=x.device)
        with guards.on_device(x):
            conv_kernel[(tiles * triton.cdiv(c, config["BLOCK_N"]), 3)](
                image,
                prepared.w,
                prepared.shift,
                y,
                h,
                w,
                n * h * w,
                *weights.dilations,
                C=c,
                KSIZE=weights.ksize,
                UPCAST=guards.interpreting(),
                BLOCK_N=config["BLOCK_N"],
                BLOCK_C=config["BLOCK_C"],
                **tile,
                **launch,
            )
        return _tail(y, x, weights, dtype, config["tail"])
    shortcut, out, nhwc = _destination(x)
    arguments = (shortcut, prepared.w, prepared.shift, *prepared.vectors(), out, h, w)
    constants = {"KSIZE": weights.ksize, "G": c // 3, "ADD": weights.shortcut, "NHWC": nhwc}
    constants |= tile | {"BLOCK_O": config["BLOCK_O"]}
    with guards.on_device(x):
        if config["kernel"] == "tma":
            block_tma(image, arguments, weights.dilations, constants, (tiles, 3), launch)
        else:
            fused_block_kernel[(tiles, 3)](
                image,
                *arguments,
                *weights.dilations,
                UPCAST=guards.interpreting(),
                **constants,
                **launch,
            )
    return out


def _tail(y: torch.Tensor, x: torch.Tensor, weights: BlockWeights, dtype: torch.dtype, config: Any) -> torch.Tensor:
    """From y [3, N*H*W, C] in ``dtype`` to the block's output."""
    shortcut, out, nhwc = _destination(x)
    pixels, third = y.shape[1], weights.channels // 3
    grid = triton.cdiv(pixels, config["BLOCK_P"]) * triton.cdiv(third, config["BLOCK_O"])
    with guards.on_device(x):
        tail_kernel[(grid, 3)](
            y,
            shortcut,
            *weights.prepare(dtype).vectors(),
            out,
            pixels,
            x.shape[2] * x.shape[3],
            C=weights.channels,
            ADD=weights.shortcut,
            NHWC=nhwc,
            UPCAST=guards.interpreting(),
            **config,
        )
    return out
