"""A model of a kernel's time from what the compiler made of it, for cards that are not here.

It ranks configurations and tells whether one is near what the card can do at all. It knows no
clock throttling, cache misses, bank conflicts or issue gaps: never read it as a measurement.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pdfquarry_kernels import configs

if TYPE_CHECKING:  # the peaks are of use without triton too, which these need
    from pdfquarry_kernels.aot import Compiled
    from pdfquarry_kernels.launches import Work


class Card(NamedTuple):
    """A representative card of an architecture; peaks from the vendor's data sheet.

    Attributes:
        name: the card.
        units: workgroup processors (RDNA: a pair of compute units) or compute units (CDNA), of
            four SIMDs each.
        clock: GHz, at which ``matrix`` is stated.
        matrix: dense fp16/bf16 matrix TFLOP/s.
        vector: fp32 TFLOP/s.
        bandwidth: device memory, GB/s.
        lds: shared memory of a unit, bytes.
    """

    name: str
    units: int
    clock: float
    matrix: float
    vector: float
    bandwidth: float
    lds: int


_WGP_LDS = 128 * 1024
CARDS = {
    "gfx1100": Card("RX 7900 XTX", 48, 2.5, 122.8, 61.4, 960, _WGP_LDS),
    "gfx1101": Card("RX 7800 XT", 30, 2.43, 74.6, 37.3, 624, _WGP_LDS),
    "gfx1102": Card("RX 7600", 16, 2.625, 43.0, 21.5, 288, _WGP_LDS),
    "gfx1151": Card("Radeon 8060S", 20, 2.9, 59.4, 29.7, 256, _WGP_LDS),
    "gfx1200": Card("RX 9060 XT", 16, 3.13, 103.0, 25.6, 320, _WGP_LDS),
    "gfx1201": Card("RX 9070 XT", 32, 2.97, 195.0, 48.7, 640, _WGP_LDS),
    "gfx90a": Card("MI210", 104, 1.7, 181.0, 22.6, 1638, 64 * 1024),
    "gfx942": Card("MI300X", 304, 2.1, 1307.0, 163.4, 5300, 64 * 1024),
    "gfx950": Card("MI355X", 256, 2.4, 2517.0, 157.3, 8000, 160 * 1024),
    "sm_90": Card("H200", 132, 1.83, 989.0, 66.9, 4800, 228 * 1024),
}


def card_of(arch: str) -> Card:
    """The card to model an architecture with: its own, its family's, or for NVIDIA the H200.

    Raises:
        ValueError: an AMD architecture of no known family.
    """
    known = "sm_90" if arch.startswith("sm_") else configs.family(arch)
    card = CARDS.get(arch) or CARDS.get(known)
    if card is None:
        raise ValueError(f"arch: no card is known for {arch!r}")
    return card


SIMDS = 4
# Clocks from a global load to its use where nothing else runs, and for a workgroup to start.
# Stated for RDNA 3 by public microbenchmarks at some 500-800 clocks; the ranking is not sensitive.
LATENCY = 700
PROLOGUE = 2 * LATENCY
MAX_WORKGROUPS = 32  # a unit, on both families


def floor_us(card: Card, macs: int, traffic: int, matrix: bool) -> float:
    """The least time for that many multiply-adds and bytes of device memory, in microseconds."""
    rate = card.matrix if matrix else card.vector
    return max(2e-6 * macs / rate, 1e-3 * traffic / card.bandwidth)


class Estimate(NamedTuple):
    """Modelled microseconds, and how many workgroups a unit holds at a time."""

    us: float
    workgroups: int


def steps_in_loop(compiled: Compiled, work: Work) -> int:
    """How many trips the compiler unrolled into one: triton 3.9 makes one loop of two.

    Counted by the multiply-adds in it; warps beyond the tile's matrix instructions repeat others'.
    """
    match = re.search(r"_(\d+)x(\d+)x(\d+)", compiled.matrix_instruction)
    if not match:
        return 1
    m, n, k = map(int, match.groups())
    warps = min(work.launch.options["num_warps"], max(1, work.outputs // (m * n)))
    done = compiled.hot_loop.matrix * m * n * k * warps
    return max(1, round(done / (work.macs / work.steps)))


def estimate(compiled: Compiled, work: Work, matrix: bool = True) -> Estimate:
    """Model the compute time of one launch.

    A unit holds as many workgroups as registers and LDS allow. In each trip of the hot loop it
    either computes for all of them, or, if they are too few, waits for memory:
    ``trip = max(workgroups * busy, latency + busy)``, busy being a workgroup's matrix clocks plus
    its vector instructions. The grid goes round in full loads of the card and a last one.

    Args:
        compiled: the kernel.
        work: what it was compiled from.
        matrix: whether matrix instructions do the work (else fp32 multiply-adds).
    """
    card = card_of(compiled.arch)
    warps = work.launch.options["num_warps"]
    by_lds = card.lds // max(compiled.lds, 1)
    by_waves = compiled.waves_per_simd * SIMDS // warps
    resident = max(1, min(by_lds, by_waves, MAX_WORKGROUPS))
    rate = (card.matrix if matrix else card.vector) * 1e3 / 2 / card.units / card.clock
    busy = work.macs / work.steps / rate  # clocks of one unit, all its SIMDs at work
    issue = 1 if compiled.arch.startswith("gfx1") else 4  # clocks a vector instruction takes
    vector = compiled.hot_loop.valu / steps_in_loop(compiled, work) * warps / SIMDS * issue
    busy = busy + vector if matrix else max(busy, vector)  # without, they are the multiply-adds

    def round_clocks(workgroups: int) -> float:
        return work.steps * max(workgroups * busy, LATENCY + busy) + PROLOGUE if workgroups else 0

    full, rest = divmod(work.programs, card.units * resident)
    clocks = full * round_clocks(resident) + round_clocks(-(-rest // card.units))
    return Estimate(1e-3 * clocks / card.clock, resident)


def patch_embed_cost(m: int, n: int, k: int, bytes_each: int) -> tuple[int, int]:
    """Multiply-adds and bytes of a patch embedding: x, weight and output once each."""
    return m * n * k, bytes_each * (m * k + n * k + m * n)


def dilated_block_cost(pixels: int, c: int, ksize: int, bytes_each: int) -> tuple[int, int]:
    """Multiply-adds and bytes of a dilated block's three convolutions and three 1x1."""
    return 3 * pixels * c * c * (ksize * ksize + 1), bytes_each * 2 * pixels * c
