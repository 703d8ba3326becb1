"""The Triton kernels of the patch embedding. Needs triton only, so that they compile ahead of time.

``y[m, n] = sum_k x[m, k] * w[n, k] + b[n]`` with x [M, K], w [N, K], accumulated in float32.
"""

import triton
import triton.language as tl


@triton.jit
def tile_order(pid, m_tiles, n_tiles, GROUP_M: tl.constexpr):
    """Walk the tiles column by column inside groups of GROUP_M rows, so that x stays in the L2."""
    group = pid // (GROUP_M * n_tiles)
    first = group * GROUP_M
    rows = tl.minimum(m_tiles - first, GROUP_M)
    inside = pid % (GROUP_M * n_tiles)
    return first + inside % rows, inside // rows


@triton.jit(do_not_specialize=["M"])
def gemm_kernel(
    x,
    w,
    b,
    y,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    X_STRIDE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """One BLOCK_M x BLOCK_N tile a program; x has row stride X_STRIDE, w and y are contiguous.

    N, K and X_STRIDE are constants because Triton only knows run-time integers to be divisible by
    16 or not: 1176 = 8 * 147 is not, and each load of x would then be two bytes wide.
    The K tail is masked in every step: peeling it off costs registers (200 against 130 on gfx1100).
    UPCAST multiplies in float32, which Triton's interpreter needs for bfloat16.
    """
    m_tile, n_tile = tile_order(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    first = m_tile.to(tl.int64) * BLOCK_M  # a 64-bit base, 32-bit offsets inside the tile
    left = (M - first).to(tl.int32)
    rows = tl.arange(0, BLOCK_M)
    cols = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    # Rows past the end read the last row again instead of being masked; only the store is masked.
    x_off = tl.minimum(rows, left - 1)[:, None] * X_STRIDE + ks[None, :]
    w_off = (cols if N % BLOCK_N == 0 else tl.minimum(cols, N - 1))[None, :] * K + ks[:, None]
    x_tile = x + first * X_STRIDE
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if K % BLOCK_K == 0:
            xs = tl.load(x_tile + x_off)
            ws = tl.load(w + w_off)
        else:
            xs = tl.load(x_tile + x_off, mask=ks[None, :] < K - k, other=0.0)
            ws = tl.load(w + w_off, mask=ks[:, None] < K - k, other=0.0)
        if UPCAST:
            xs = xs.to(tl.float32)
            ws = ws.to(tl.float32)
        acc = tl.dot(xs, ws, acc, input_precision="ieee")
        x_off += BLOCK_K
        w_off += BLOCK_K
    if HAS_BIAS:
        acc += tl.load(b + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    keep = rows[:, None] < left
    if N % BLOCK_N != 0:
        keep = keep & (cols[None, :] < N)
    y_off = rows[:, None] * N + cols[None, :]
    tl.store(y + first * N + y_off, acc.to(y.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["M"])
def dot_kernel(
    x,
    w,
    b,
    y,
    M,
    xm,
    xc,
    xt,
    xh,
    xw,
    wn,
    wc,
    wt,
    wh,
    ww,
    N: tl.constexpr,
    C: tl.constexpr,
    T: tl.constexpr,
    P: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """No matrix instructions; x [M, C, T, P, P] and w [N, C, T, P, P] of any strides.

    A tile a program instead of one output a program (as in the guide's first scheme): each operand
    is read BLOCK_M or BLOCK_N times less.
    """
    K: tl.constexpr = C * T * P * P
    n_tiles: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    pid = tl.program_id(0)
    first = (pid // n_tiles).to(tl.int64) * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    cols = (pid % n_tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    x_rows = x + tl.minimum(rows, M - 1)[:, None] * xm
    w_rows = w + tl.minimum(cols, N - 1)[:, None].to(tl.int64) * wn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        ks = k + tl.arange(0, BLOCK_K)
        c, t, h, v = ks // (T * P * P), ks // (P * P) % T, ks // P % P, ks % P
        inside = (ks < K)[None, :]
        x_off = (c * xc + t * xt + h * xh + v * xw)[None, :]
        w_off = (c * wc + t * wt + h * wh + v * ww)[None, :]
        xs = tl.load(x_rows + x_off, mask=inside, other=0.0).to(tl.float32)
        ws = tl.load(w_rows + w_off, mask=inside, other=0.0).to(tl.float32)
        acc += tl.sum(xs[:, None, :] * ws[None, :, :], axis=2)
    if HAS_BIAS:
        acc += tl.load(b + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    keep = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(y + rows[:, None] * N + cols[None, :], acc.to(y.dtype.element_ty), mask=keep)
