"""The Triton kernels of DocLayout-YOLO's dilated block. Needs triton only.

What one block computes, for its three dilations d (batch norms folded into weights and shifts):

    y_d = silu(conv_d(x, w) + shift)                 one k x k weight for the three of them
    z_d = silu(w2 y_d + shift2)                      1x1
    u   = z * sigmoid(silu(gate * z + gate_shift))   z = the three z_d stacked, 3 C channels
    out = silu(grouped 1x1 of u + shift3) [+ x]      output o reads channels 3 o .. 3 o + 2 of u

C is a multiple of three, so the three channels that one output reads come from one dilation:
output channels [d C/3, (d + 1) C/3) need y_d alone, and a program that holds all C channels of
y_d for some pixels can go on to the end (``fused_block_kernel``). Where registers do not reach,
``conv_kernel`` writes y and ``tail_kernel`` does the rest.

Images are channels-last: pixel p = (n H + h) W + w, channel c at p C + c. Weights are laid out for
that by ``dilated_block.Prepared``: w [tap, out, in]; w2, gate and w3 with row (j, o) for channel
3 o + j, which makes the three partners of an output three tiles of one shape.
Sizes and dilations are never specialised: one compilation serves every page size.
"""

import triton
import triton.language as tl

RUNTIME_ARGUMENTS = ["H", "W", "PIXELS", "D0", "D1", "D2"]


@triton.jit
def silu(v):
    return v / (1.0 + tl.exp(-v))


@triton.jit
def pixel_tile(tile, H, W, TILE_H: tl.constexpr, TILE_W: tl.constexpr):
    """Image, row, column and validity of each of the TILE_H x TILE_W pixels of one tile."""
    across = tl.cdiv(W, TILE_W)
    tiles = across * tl.cdiv(H, TILE_H)
    lane = tl.arange(0, TILE_H * TILE_W)
    h = tile % tiles // across * TILE_H + lane // TILE_W
    v = tile % tiles % across * TILE_W + lane % TILE_W
    return tile // tiles, h, v, (h < H) & (v < W)


@triton.jit
def gated(z, row, inside, shift2, gate, gate_shift, w3, stacked_row):
    """silu(z + shift2), gated, times its weight in the grouped 1x1; z [pixels, outputs]."""
    z = silu(z + tl.load(shift2 + row, mask=inside, other=0.0)[None, :])
    scale = tl.load(gate + stacked_row, mask=inside, other=0.0)[None, :]
    shift = tl.load(gate_shift + stacked_row, mask=inside, other=0.0)[None, :]
    weight = tl.load(w3 + stacked_row, mask=inside, other=0.0)[None, :]
    return z / (1.0 + tl.exp(-silu(z * scale + shift))) * weight


@triton.jit
def write(total, shortcut, out, base, pixel, HW, o, C: tl.constexpr, keep, ADD, NHWC):
    """Add the shortcut and store, in the layout of the caller's image."""
    nhwc = pixel[:, None] * C + o[None, :]
    at = base + (nhwc if NHWC else o[None, :] * HW + pixel[:, None])
    if ADD:
        total += tl.load(shortcut + at, mask=keep, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=keep)


@triton.jit
def finish_block(
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
    base,
    pixel,
    HW,
    inside,
    DTYPE: tl.constexpr,
    G: tl.constexpr,
    ADD: tl.constexpr,
    NHWC: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """From the convolution's three accumulators [pixels, G] of one dilation to the output.

    BLOCK_O outputs at a time: the fewer, the fewer registers are in use beside the accumulators.
    """
    C: tl.constexpr = 3 * G
    COMPUTE: tl.constexpr = tl.float32 if UPCAST else DTYPE
    g = tl.arange(0, G)
    o = tl.arange(0, BLOCK_O)
    everywhere = o < BLOCK_O
    y0 = silu(acc0 + tl.load(shift + g)[None, :]).to(DTYPE).to(COMPUTE)
    y1 = silu(acc1 + tl.load(shift + G + g)[None, :]).to(DTYPE).to(COMPUTE)
    y2 = silu(acc2 + tl.load(shift + 2 * G + g)[None, :]).to(DTYPE).to(COMPUTE)
    w_off = g[:, None] + o[None, :] * C
    # Loops kept rolled: unrolled, the compiler loads all of w2 first and spills.
    for first in tl.range(0, G, BLOCK_O, num_stages=1, loop_unroll_factor=1):
        total = tl.zeros((acc0.shape[0], BLOCK_O), dtype=tl.float32)
        for j in tl.range(3, num_stages=1, loop_unroll_factor=1):
            row = j * G + first + o
            wj = w2 + (j * G + first) * C + w_off
            z = tl.dot(y0, tl.load(wj).to(COMPUTE), input_precision="ieee")
            z = tl.dot(y1, tl.load(wj + G).to(COMPUTE), z, input_precision="ieee")
            z = tl.dot(y2, tl.load(wj + 2 * G).to(COMPUTE), z, input_precision="ieee")
            stacked = branch * C + row
            total += gated(z, row, everywhere, shift2, gate, gate_shift, w3, stacked)
        output = branch * G + first + o
        total = silu(total + tl.load(shift3 + output)[None, :])
        write(total, shortcut, out, base, pixel, HW, output, C, inside[:, None], ADD, NHWC)


@triton.jit(do_not_specialize=RUNTIME_ARGUMENTS)
def fused_block_kernel(
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
    UPCAST: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """A whole block in one launch, for C = 3 G, G a power of two; a dilation on grid axis 1.

    x [N, H, W, C] in the type it computes in; shortcut and out in the caller's type and layout
    (NHWC or NCHW). UPCAST multiplies in float32 (Triton's interpreter needs it for bfloat16).
    """
    C: tl.constexpr = 3 * G
    branch = tl.program_id(1)
    d = tl.where(branch == 0, D0, tl.where(branch == 1, D1, D2))
    image, h, v, inside = pixel_tile(tl.program_id(0), H, W, TILE_H, TILE_W)
    base = image.to(tl.int64) * H * W * C
    pixel = h * W + v
    g = tl.arange(0, G)
    w_off = g[:, None] + g[None, :] * C
    acc0 = tl.zeros((TILE_H * TILE_W, G), dtype=tl.float32)
    acc1 = tl.zeros((TILE_H * TILE_W, G), dtype=tl.float32)
    acc2 = tl.zeros((TILE_H * TILE_W, G), dtype=tl.float32)
    for step in range(0, KSIZE * KSIZE * 3):  # taps x thirds of the input channels
        tap = step // 3
        c = step % 3 * G
        dy = (tap // KSIZE - KSIZE // 2) * d
        dx = (tap % KSIZE - KSIZE // 2) * d
        ok = (h + dy >= 0) & (h + dy < H) & (v + dx >= 0) & (v + dx < W)
        x_off = (pixel + dy * W + dx) * C + c
        a = tl.load(x + base + x_off[:, None] + g[None, :], mask=ok[:, None], other=0.0)
        wt = w + tap * C * C + c + w_off
        b0 = tl.load(wt)
        b1 = tl.load(wt + G * C)
        b2 = tl.load(wt + 2 * G * C)
        if UPCAST:
            a = a.to(tl.float32)
            b0 = b0.to(tl.float32)
            b1 = b1.to(tl.float32)
            b2 = b2.to(tl.float32)
        acc0 = tl.dot(a, b0, acc0, input_precision="ieee")
        acc1 = tl.dot(a, b1, acc1, input_precision="ieee")
        acc2 = tl.dot(a, b2, acc2, input_precision="ieee")
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
        base,
        pixel,
        H * W,
        inside,
        x.dtype.element_ty,
        G,
        ADD,
        NHWC,
        UPCAST,
        BLOCK_O,
    )


@triton.jit(do_not_specialize=RUNTIME_ARGUMENTS)
def conv_kernel(
    x,
    w,
    shift,
    y,
    H,
    W,
    PIXELS,
    D0,
    D1,
    D2,
    C: tl.constexpr,
    KSIZE: tl.constexpr,
    UPCAST: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The three dilated convolutions with batch norm and SiLU in one launch; any C.

    x [N, H, W, C] to y [3, PIXELS, C]; PIXELS = N H W. Taps and channel blocks are one loop.
    """
    n_tiles: tl.constexpr = (C + BLOCK_N - 1) // BLOCK_N
    chunks: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    branch = tl.program_id(1)
    d = tl.where(branch == 0, D0, tl.where(branch == 1, D1, D2))
    image, h, v, inside = pixel_tile(tl.program_id(0) // n_tiles, H, W, TILE_H, TILE_W)
    cols = tl.program_id(0) % n_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    cs = tl.arange(0, BLOCK_C)
    base = image.to(tl.int64) * H * W * C
    pixel = h * W + v
    w_off = cs[:, None] + (cols if C % BLOCK_N == 0 else tl.minimum(cols, C - 1))[None, :] * C
    acc = tl.zeros((TILE_H * TILE_W, BLOCK_N), dtype=tl.float32)
    for step in range(0, KSIZE * KSIZE * chunks):
        tap = step // chunks
        c = step % chunks * BLOCK_C
        dy = (tap // KSIZE - KSIZE // 2) * d
        dx = (tap % KSIZE - KSIZE // 2) * d
        ok = ((h + dy >= 0) & (h + dy < H) & (v + dx >= 0) & (v + dx < W))[:, None]
        x_ptr = x + base + ((pixel + dy * W + dx) * C + c)[:, None] + cs[None, :]
        w_ptr = w + tap * C * C + c + w_off
        if C % BLOCK_C == 0:
            a = tl.load(x_ptr, mask=ok, other=0.0)
            b = tl.load(w_ptr)
        else:
            a = tl.load(x_ptr, mask=ok & (cs < C - c)[None, :], other=0.0)
            b = tl.load(w_ptr, mask=(cs < C - c)[:, None], other=0.0)
        if UPCAST:
            a = a.to(tl.float32)
            b = b.to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    acc = silu(acc + tl.load(shift + cols, mask=cols < C, other=0.0)[None, :])
    y_base = y + branch.to(tl.int64) * PIXELS * C + base
    keep = inside[:, None] & (cols < C)[None, :]
    at = pixel[:, None] * C + cols[None, :]
    tl.store(y_base + at, acc.to(y.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["PIXELS", "HW"])
def tail_kernel(
    y,
    shortcut,
    w2,
    shift2,
    gate,
    gate_shift,
    w3,
    shift3,
    out,
    PIXELS,
    HW,
    C: tl.constexpr,
    ADD: tl.constexpr,
    NHWC: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """All that follows the convolutions: 1x1, batch norm, SiLU, gate, grouped 1x1, shortcut.

    y [3, PIXELS, C] to out; a tile of BLOCK_P pixels x BLOCK_O of the C / 3 outputs of a dilation.
    """
    THIRD: tl.constexpr = C // 3
    n_tiles: tl.constexpr = (THIRD + BLOCK_O - 1) // BLOCK_O
    branch = tl.program_id(1)
    pixel = tl.program_id(0) // n_tiles * BLOCK_P + tl.arange(0, BLOCK_P)
    o = tl.program_id(0) % n_tiles * BLOCK_O + tl.arange(0, BLOCK_O)
    inside = o < THIRD
    cs = tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_P, BLOCK_O), dtype=tl.float32)
    y_ptr = y + (branch.to(tl.int64) * PIXELS + tl.minimum(pixel, PIXELS - 1))[:, None] * C
    w_ptr = w2 + tl.minimum(o, THIRD - 1)[None, :] * C
    for j in tl.range(3, num_stages=1, loop_unroll_factor=1):
        z = tl.zeros((BLOCK_P, BLOCK_O), dtype=tl.float32)
        for c in range(0, C, BLOCK_C):
            channel = c + cs
            if C % BLOCK_C == 0:
                a = tl.load(y_ptr + channel[None, :])
                b = tl.load(w_ptr + j * THIRD * C + channel[:, None])
            else:
                a = tl.load(y_ptr + channel[None, :], mask=(channel < C)[None, :], other=0.0)
                w_at = w_ptr + j * THIRD * C + channel[:, None]
                b = tl.load(w_at, mask=(channel < C)[:, None], other=0.0)
            if UPCAST:
                a = a.to(tl.float32)
                b = b.to(tl.float32)
            z = tl.dot(a, b, z, input_precision="ieee")
        row = j * THIRD + o
        total += gated(z, row, inside, shift2, gate, gate_shift, w3, branch * C + row)
    o = branch * THIRD + o
    total = silu(total + tl.load(shift3 + o, mask=inside, other=0.0)[None, :])
    image = pixel // HW
    base = image.to(tl.int64)[:, None] * HW * C
    keep = (pixel < PIXELS)[:, None] & inside[None, :]
    write(total, shortcut, out, base, pixel % HW, HW, o, C, keep, ADD, NHWC)
