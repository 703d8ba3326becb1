"""Weights whose rows start on cache lines."""

import weakref

import torch

CACHE_LINE = 128  # bytes of the L2

# id of a weight -> (weak reference to it, its version, its aligned copy)
_aligned: dict[int, tuple[weakref.ref[torch.Tensor], int, torch.Tensor]] = {}


def aligned_weight(weight: torch.Tensor) -> torch.Tensor:
    """[E, K] of a [E, ...] weight, its rows starting on cache lines.

    Rows of 1176 bfloat16 are 2352 bytes, 18.4 lines: every 128-byte piece of a tile then touches
    two lines, and the L2 gets nearly twice the requests (by an H200's hardware counters).
    A padded copy is made once a weight and kept until the weight changes or dies.

    Returns:
        [E, K], row stride a multiple of ``CACHE_LINE``; a plain view where no copy is possible
        (an inference tensor, or a first call inside a graph capture) or none is needed.
    """
    flat = weight.reshape(weight.shape[0], -1)
    step = CACHE_LINE // weight.element_size()
    width = -(-flat.shape[1] // step) * step
    if width == flat.shape[1] or weight.is_inference():
        return flat  # inference tensors have no version: a copy could go stale unseen
    known = _aligned.get(id(weight))
    if known and known[0]() is weight and known[1] == weight._version:
        return known[2]
    if weight.is_cuda and torch.cuda.is_current_stream_capturing():
        return flat  # memory from inside a graph holds nothing before its first replay
    padded = weight.new_empty((flat.shape[0], width))[:, : flat.shape[1]].copy_(flat)
    if weight.is_cuda:  # other streams may read it from now on
        torch.cuda.current_stream(weight.device).synchronize()
    key = id(weight)
    _aligned[key] = (
        weakref.ref(weight, lambda _: _aligned.pop(key, None)),
        weight._version,
        padded,
    )
    return padded
