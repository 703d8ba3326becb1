"""The patch embedding against float64, every implementation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdfquarry_kernels.patch_embed import IMPLEMENTATIONS, patch_embed, triton_gemm

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TRITON = ["triton_gemm", "triton_dot"]


def check(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, name: str) -> None:
    """Half a unit in the last place of the result, and the rounding of a float32 sum.

    The sum's bound is 2 sqrt(K) 2^-24 of the largest result; the interpreter truncates on its way
    to bfloat16 instead of rounding, which makes the half unit a whole one there.
    """
    y = patch_embed(x, weight, bias, name)
    exact = x.double().flatten(1) @ weight.double().flatten(1).T
    if bias is not None:
        exact += bias.double()
    assert y.dtype == x.dtype and y.shape == exact.shape and y.is_contiguous()
    ulp = torch.finfo(x.dtype).eps * (1.0 if x.dtype == torch.bfloat16 else 0.5)
    k = weight[0].numel()
    largest = exact.abs().max() if exact.numel() else 0.0
    allowed = ulp * exact.abs() * 1.01 + 2 * k**0.5 * 2**-24 * (largest + 1)
    assert ((y.double() - exact).abs() <= allowed).all()


def patches(m: int, dtype: torch.dtype, t: int = 2, p: int = 4) -> torch.Tensor:
    return torch.randn(m, 3, t, p, p).to(dtype)


def weights(n: int, dtype: torch.dtype, t: int = 2, p: int = 4) -> torch.Tensor:
    return (torch.randn(n, 3, t, p, p) * 0.1).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_agrees_with_float64(name: str, dtype: torch.dtype, with_bias: bool) -> None:
    bias = torch.randn(80).to(dtype) if with_bias else None
    check(patches(37, dtype), weights(80, dtype), bias, name)


@pytest.mark.parametrize("name", TRITON)
def test_agrees_at_the_size_of_the_real_model(name: str) -> None:
    n = 160 if name == "triton_gemm" else 16
    check(patches(37, torch.float16, p=14), weights(n, torch.float16, p=14), None, name)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_no_patches_give_no_rows(name: str) -> None:
    y = patch_embed(patches(0, torch.float16), weights(8, torch.float16), None, name)
    assert y.shape == (0, 8)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_any_strides_of_patches_and_weight(name: str, dtype: torch.dtype) -> None:
    wide = torch.randn(30, 120).to(dtype)
    weight = weights(24, dtype)
    check(wide[:, 8:104], weight, None, name)  # rows further apart than they are long
    check(wide[:, 1:97], weight, None, name)  # a base that 16-byte loads cannot start from
    check(wide[::3, :96], weight, None, name)
    transposed = torch.randn(96, 30).to(dtype).t()
    check(transposed, weight, None, name)
    permuted = torch.randn(30, 4, 4, 2, 3).to(dtype).permute(0, 4, 3, 1, 2)
    check(permuted, weight.to(memory_format=torch.channels_last_3d), None, name)


@pytest.mark.parametrize("name", TRITON)
@settings(max_examples=10)
@given(
    m=st.integers(1, 150),
    n=st.integers(1, 90),
    t=st.integers(1, 2),
    p=st.integers(1, 7),
    dtype=st.sampled_from(DTYPES),
    with_bias=st.booleans(),
)
def test_agrees_at_any_size(name: str, m: int, n: int, t: int, p: int, dtype: torch.dtype, with_bias: bool) -> None:
    if name == "triton_dot":
        m, n = m % 40 + 1, n % 40 + 1
    bias = torch.randn(n).to(dtype) if with_bias else None
    check(patches(m, dtype, t, p), weights(n, dtype, t, p), bias, name)


@pytest.mark.parametrize("name", TRITON)
@pytest.mark.parametrize(("stride", "m"), [(2**22, 520), (2**25, 70)])
def test_offsets_beyond_32_bits(name: str, stride: int, m: int) -> None:
    assert m * stride > 2**31
    storage = torch.empty(m * stride, dtype=torch.float16)  # memory is only taken where written
    x = storage.as_strided((m, 96), (stride, 1))
    x.copy_(torch.randn(m, 96))
    check(x, weights(16, torch.float16), None, name)


@pytest.mark.parametrize("blocks", [(64, 32, 32), (32, 128, 64), (16, 16, 16)])
def test_block_sizes_do_not_change_the_result(blocks: tuple[int, int, int]) -> None:
    x, weight = patches(70, torch.float32), weights(50, torch.float32)
    config = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), blocks, strict=True))
    config |= {"kernel": "plain", "GROUP_M": 2, "num_warps": 4, "num_stages": 1}
    y = triton_gemm(x, weight, None, config)
    exact = x.double().flatten(1) @ weight.double().flatten(1).T
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)
