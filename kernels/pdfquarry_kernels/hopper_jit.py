"""Hopper's own variants: tiles come through tensor descriptors (the bulk copy engine). Triton only.

Nothing here runs on AMD cards; ``patch_embed_jit`` and ``dilated_block_jit`` hold what does.
"""

import triton
import triton.language as tl

from pdfquarry_kernels.dilated_block_jit import RUNTIME_ARGUMENTS, finish_block, pixel_tile
from pdfquarry_kernels.patch_embed_jit import tile_order


@triton.jit(do_not_specialize=["M"])
def gemm_tma_kernel(
    x,
    w,
    b,
    y,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """The patch embedding's GEMM, persistent: PROGRAMS programs share the tiles.

    x: descriptor of [M, K] in blocks BLOCK_M x BLOCK_K; w: of [N, K], BLOCK_N x BLOCK_K;
    y: of [M, N], BLOCK_M x BLOCK_N / 2. The loops are flattened, so that the next tile's loads run
    under the store of this one; the store goes in two halves to leave shared memory for a
    fourth stage. The copy engine fills the K tail with zeros and clips the last rows.
    """
    m_tiles = tl.cdiv(M, BLOCK_M)
    n_tiles: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    for tile in tl.range(tl.program_id(0), m_tiles * n_tiles, PROGRAMS, flatten=True):
        m_tile, n_tile = tile_order(tile, m_tiles, n_tiles, GROUP_M)
        row = m_tile * BLOCK_M
        col = n_tile * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            acc = tl.dot(x.load([row, k]), w.load([col, k]).T, acc)
        if HAS_BIAS:
            cols = col + tl.arange(0, BLOCK_N)
            acc += tl.load(b + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        y.store([row, col], left.to(y.dtype))
        y.store([row, col + BLOCK_N // 2], right.to(y.dtype))


@triton.jit(do_not_specialize=RUNTIME_ARGUMENTS)
def block_tma_kernel(
    x,
    shortcut,
    w,
    shift,
    w2,
    shift2,
    gate,
    gate_shift,
    w3,
    shift3,
    out,
    H,
    W,
    D0,
    D1,
    D2,
    KSIZE: tl.constexpr,
    G: tl.constexpr,
    ADD: tl.constexpr,
    NHWC: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """``dilated_block_jit.fused_block_kernel`` with x [N, H, W, C] and w [taps * C, C] behind
    descriptors (blocks [1, TILE_H, TILE_W, G] and [G, G]): a tap that leaves the image reads the
    zeros that the copy engine puts there, so that no mask is left.
    """
    C: tl.constexpr = 3 * G
    P: tl.constexpr = TILE_H * TILE_W
    branch = tl.program_id(1)
    d = tl.where(branch == 0, D0, tl.where(branch == 1, D1, D2))
    across = tl.cdiv(W, TILE_W)
    tiles = across * tl.cdiv(H, TILE_H)
    image = tl.program_id(0) // tiles
    top = tl.program_id(0) % tiles // across * TILE_H
    left = tl.program_id(0) % tiles % across * TILE_W
    acc0 = tl.zeros((P, G), dtype=tl.float32)
    acc1 = tl.zeros((P, G), dtype=tl.float32)
    acc2 = tl.zeros((P, G), dtype=tl.float32)
    for step in range(0, KSIZE * KSIZE * 3):
        tap = step // 3
        c = step % 3 * G
        dy = (tap // KSIZE - KSIZE // 2) * d
        dx = (tap % KSIZE - KSIZE // 2) * d
        a = tl.reshape(x.load([image, top + dy, left + dx, c]), (P, G))
        acc0 = tl.dot(a, w.load([tap * C, c]).T, acc0)
        acc1 = tl.dot(a, w.load([tap * C + G, c]).T, acc1)
        acc2 = tl.dot(a, w.load([tap * C + 2 * G, c]).T, acc2)
    image, h, v, inside = pixel_tile(tl.program_id(0), H, W, TILE_H, TILE_W)
    finish_block(
        acc0,
        acc1,
        acc2,
        shortcut,
        shift,
        w2,
        shift2,
        gate,
        gate_shift,
        w3,
        shift3,
        out,
        branch,
        image.to(tl.int64) * H * W * C,
        h * W + v,
        H * W,
        inside,
        x.dtype,
        G,
        ADD,
        NHWC,
        False,
        BLOCK_O,
    )
