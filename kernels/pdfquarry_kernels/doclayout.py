"""Puts our dilated block into a loaded DocLayout-YOLO model."""

from typing import Any

import torch
from torch import nn

from pdfquarry_kernels.dilated_block import IMPLEMENTATIONS, BlockWeights, ConvNorm, dilated_block

REPLACED = "DilatedBlock"


class FastDilatedBlock(nn.Module):
    """Drop-in for ``doclayout_yolo``'s DilatedBlock; the original stays inside.

    Args:
        block: the original.
        implementation: as for ``dilated_block``.
        compute_dtype: as for ``dilated_block``.

    Raises:
        ValueError: a block that is not the gated kind or does not end in SiLU.
    """

    def __init__(self, block: Any, implementation: str, compute_dtype: torch.dtype | None) -> None:
        super().__init__()
        self.block: Any = block
        self.implementation = implementation
        self.compute_dtype = compute_dtype
        self._weights: BlockWeights | None = None
        self.weights()

    def weights(self) -> BlockWeights:
        """The block's weights as they are now; made anew after ``.to()`` has replaced them."""
        dcv = self.block.dcv
        if self._weights is None or self._weights.dilated.weight is not dcv.conv.weight:
            self._weights = weights_of(self.block)
        return self._weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return dilated_block(x, self.weights(), self.implementation, self.compute_dtype)


def weights_of(block: Any) -> BlockWeights:
    """The weights of a ``doclayout_yolo`` DilatedBlock (not copies).

    Raises:
        ValueError: as ``FastDilatedBlock``.
    """
    if getattr(block, "fuse", None) != "glu":
        kind = getattr(block, "fuse", None)
        raise ValueError(f"block: the gated kind (fuse='glu') is needed, got fuse={kind!r}")
    parts: list[ConvNorm] = []
    for name in ("dcv", "cv2", "conv_gating", "conv1x1"):
        part = getattr(block, name)
        if not isinstance(part.act, nn.SiLU):
            raise ValueError(f"block: {name} ends in {type(part.act).__name__}, SiLU is needed")
        # After fuse() there is no batch norm, and the convolution has a bias.
        parts.append(ConvNorm(part.conv.weight, getattr(part, "bn", None), part.conv.bias))
    dilated, pointwise, gate, grouped = parts
    return BlockWeights(dilated, pointwise, gate, grouped, tuple(block.dilation), bool(block.add))


def patch_doclayout(model: nn.Module, implementation: str = "auto", compute_dtype: torch.dtype | None = None) -> int:
    """Replace every DilatedBlock in a model, in place; patching twice changes nothing more.

    Args:
        model: a ``doclayout_yolo`` model: its ``YOLOv10`` wrapper, or the network inside it.
        implementation: one of ``dilated_block.IMPLEMENTATIONS``, or "auto".
        compute_dtype: see ``dilated_block``.

    Returns:
        How many blocks are replaced now, the already replaced ones included.

    Raises:
        ValueError: an unknown implementation, no DilatedBlock in the model, or one that differs
            from what the kernels compute.
    """
    if implementation != "auto" and implementation not in IMPLEMENTATIONS:
        names = ", ".join(("auto", *IMPLEMENTATIONS))
        raise ValueError(f"implementation: one of {names} is needed, got {implementation!r}")
    replaced = 0
    for parent in list(model.modules()):
        if isinstance(parent, FastDilatedBlock):
            parent.implementation, parent.compute_dtype = implementation, compute_dtype
            replaced += 1
            continue
        for name, child in list(parent.named_children()):
            if type(child).__name__ == REPLACED:
                fast = FastDilatedBlock(child, implementation, compute_dtype)
                setattr(parent, name, fast.train(child.training))
                replaced += 1
    if not replaced:
        raise ValueError("model: holds no DilatedBlock; is this a doclayout YOLOv10 model?")
    return replaced
