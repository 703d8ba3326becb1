"""The candidates that tuning looks at: the grid, and what ahead-of-time compilation leaves of it.

Needs triton only.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

from pdfquarry_kernels import roofline
from pdfquarry_kernels.aot import compile_launch
from pdfquarry_kernels.launches import Work, dilated_block_work, patch_embed_work

Config = dict[str, Any]
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


class Case(NamedTuple):
    """One problem to tune for.

    Attributes:
        op: ``patch_embed`` or ``dilated_block``.
        dtype: ``bf16``, ``fp16`` or ``fp32``.
        shape: (M, N, K), or (images, C, H, W, kernel size).
        up_to: bound of the entry's bucket; None for the last one.
    """

    op: str
    dtype: str
    shape: tuple[int, ...]
    up_to: int | None

    @property
    def fixed(self) -> dict[str, int]:
        """The part of the shape that an entry is keyed on."""
        if self.op == "patch_embed":
            return {"N": self.shape[1], "K": self.shape[2]}
        return {"C": self.shape[1], "KSIZE": self.shape[4]}

    @property
    def dtypes(self) -> list[str]:
        """The types that the entry is for: the two 16-bit ones compile to the same code."""
        return ["fp32"] if self.dtype == "fp32" else ["bf16", "fp16"]


PATCHES = (256, 1024, 5476, 16384, 65536)  # 5476: MinerU2.5's layout pass, one page
IMAGES = (
    # DocLayout-YOLO's two kinds of block at 1024 and 1280 pixels, one page and a batch of eight.
    ((1, 96, 128, 128, 5), (1, 96, 160, 160, 5), (8, 96, 128, 128, 5), (8, 96, 160, 160, 5)),
    ((1, 192, 64, 64, 3), (1, 192, 80, 80, 3), (8, 192, 64, 64, 3), (8, 192, 80, 80, 3)),
)


def cases() -> Iterator[Case]:
    """All problems of the two models, smallest bucket first."""
    for dtype in ("bf16", "fp32"):
        for m in PATCHES:
            last = m == PATCHES[-1]
            yield Case("patch_embed", dtype, (m, 1280, 1176), None if last else m)
    for dtype in ("fp16", "fp32"):
        for images in IMAGES:
            for shape in images:
                pixels = shape[0] * shape[2] * shape[3]
                yield Case("dilated_block", dtype, shape, None if shape == images[-1] else pixels)


def _launch(**values: tuple[Any, ...]) -> Iterator[Config]:
    for combination in product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def grid(case: Case, arch: str) -> Iterator[Config]:
    """Every configuration worth compiling for a case on an architecture."""
    nvidia, cdna = arch.startswith("sm_"), arch.startswith("gfx9")
    single = case.dtype == "fp32"
    # On RDNA a second stage hides no latency (the barrier waits for all loads): 1 and 2 only.
    stages = (3, 4) if nvidia and not single else (2, 3) if cdna else (1, 2)
    if case.op == "patch_embed":
        blocks = (32, 64) if single else (64, 128, 256)
        options = ({"kpack": 2, "matrix_instr_nonkdim": 16}, {}) if arch == "gfx942" else ({},)
        for config, extra in product(
            _launch(
                BLOCK_M=blocks,
                BLOCK_N=blocks,
                BLOCK_K=(32,) if single else (32, 64),
                num_warps=(4, 8),
                num_stages=stages,
            ),
            options,
        ):
            yield {
                "kernel": "plain",
                "GROUP_M": 8,
                **config,
                **({"options": extra} if extra else {}),
            }
        if arch == "sm_90" and not single:
            for config in _launch(
                BLOCK_M=(64, 128, 256),
                BLOCK_N=(64, 128, 256),
                BLOCK_K=(64,),
                GROUP_M=(4, 8, 16),
                num_warps=(4, 8),
                num_stages=(3, 4, 5, 6),
                programs_per_processor=(1, 2),
            ):
                # Four warps spill on big tiles; with small ones the weight stays in the L2 anyhow,
                # whatever the order.
                big = config["BLOCK_M"] * config["BLOCK_N"] >= 128 * 256
                if config["num_warps"] == 8 if big else config["GROUP_M"] == 8:
                    yield {"kernel": "tma", **config}
        return
    channels = case.shape[1]
    third = channels // 3
    rows = 32 if single else 64
    tail = {"BLOCK_P": rows, "BLOCK_O": 32, "BLOCK_C": 32, "num_warps": 4, "num_stages": 1}
    depths = stages if nvidia or cdna else (1,)
    tiles = ((4, 8), (8, 8), (8, 16), (16, 16))
    for (tile_h, tile_w), warps, depth in product(tiles, (4, 8), depths):
        common = {"TILE_H": tile_h, "TILE_W": tile_w, "num_warps": warps, "num_stages": depth}
        for block_n, block_c in product((32, 64), (32,) if single or third == 32 else (32, 64)):
            # 64 sums a lane: with more, float32's unrolled multiply-adds take minutes to compile.
            few = not single or tile_h * tile_w * block_n <= 64 * 32 * warps
            if channels % block_n == 0 and few:
                blocks_of = {"BLOCK_N": block_n, "BLOCK_C": block_c}
                yield {"kernel": "two_step", **common, **blocks_of, "tail": tail}
        if third & (third - 1) == 0 and not single:
            for block_o in sorted({16, 32, third}):
                yield {"kernel": "fused", **common, "BLOCK_O": block_o}
                if arch == "sm_90" and tile_h * tile_w >= 64:
                    yield {"kernel": "tma", **common, "BLOCK_O": block_o}


def work_of(case: Case, config: Mapping[str, Any]) -> list[Work]:
    """What a configuration launches for a case."""
    if case.op == "patch_embed":
        return patch_embed_work(config, case.dtype, *case.shape)
    return dilated_block_work(config, case.dtype, *case.shape)


class Verdict(NamedTuple):
    """What compilation says of a configuration.

    Attributes:
        faults: why it cannot be used; empty if it can.
        modelled: microseconds.
        floor: microseconds that the card's peaks allow.
        registers: the most that one of its kernels takes.
        reread: bytes that the hot loop loads for a multiply-add: fewer in larger tiles.
    """

    faults: list[str]
    modelled: float = 0.0
    floor: float = 0.0
    registers: int = 0
    reread: float = 0.0


def judge(case: Case, config: Mapping[str, Any], arch: str) -> Verdict:
    """Compile a configuration for a case, look for faults, and model its time.

    Raises:
        ValueError: no card is known for the architecture.
    """
    matrix = case.dtype != "fp32"
    size = BYTES[case.dtype]
    if case.op == "patch_embed":
        m, n, k = case.shape
        macs, traffic = roofline.patch_embed_cost(m, n, k, size)
    else:
        images, c, h, w, ksize = case.shape
        macs, traffic = roofline.dilated_block_cost(images * h * w, c, ksize, size)
    faults: list[str] = []
    total, registers, reread = 0.0, 0, 0.0
    for work in work_of(case, config):
        try:
            compiled = compile_launch(work.launch, arch)
        except Exception as error:  # the compiler's own failure: one more reason to drop it
            return Verdict([f"does not compile: {type(error).__name__}"])
        faults += compiled.faults(matrix, wide_loads=work.is_gemm and matrix)
        total += roofline.estimate(compiled, work, matrix).us
        registers = max(registers, compiled.registers)
        lanes = work.launch.options["num_warps"] * (64 if arch.startswith("gfx9") else 32)
        loaded = sum(width * count for width, count in compiled.hot_loop.loads.items())
        steps = work.steps / roofline.steps_in_loop(compiled, work)
        reread = max(reread, loaded * lanes * steps / work.macs)
    floor = roofline.floor_us(roofline.card_of(arch), macs, traffic, matrix)
    return Verdict(faults, max(total, floor), floor, registers, reread)
