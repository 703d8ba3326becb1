"""The dilated block against float64, every implementation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdfquarry_kernels import dilated_block as db
from pdfquarry_kernels.problems import float64_block, random_block

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Three roundings of intermediate images, each half a unit; whole ones for bfloat16, which the
# interpreter truncates. Relative to the norm of the result.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1.2e-2}
FUSED = {"kernel": "fused", "TILE_H": 4, "TILE_W": 8, "num_warps": 4, "num_stages": 1}


def error(y: torch.Tensor, x: torch.Tensor, weights: db.BlockWeights) -> float:
    exact = float64_block(x, weights)
    assert y.shape == x.shape and y.dtype == x.dtype
    return float((y.double() - exact).norm() / exact.norm())


def image(n: int, c: int, h: int, w: int, dtype: torch.dtype, channels_last: bool) -> torch.Tensor:
    x = torch.randn(n, c, h, w).to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


@pytest.mark.parametrize("channels_last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", db.IMPLEMENTATIONS)
def test_agrees_with_float64(name: str, dtype: torch.dtype, channels_last: bool) -> None:
    weights = random_block(24, 3, (1, 3, 5), dtype, "cpu")
    x = image(2, 24, 7, 9, dtype, channels_last)
    y = db.dilated_block(x, weights, name)
    assert y.stride() == x.stride()
    assert error(y, x, weights) < TOLERANCE[dtype]


@pytest.mark.parametrize(("channels", "ksize"), [(96, 5), (192, 3)])
@pytest.mark.parametrize("kernel", ["fused", "two_step"])
def test_agrees_at_the_channels_of_the_real_model(channels: int, ksize: int, kernel: str) -> None:
    weights = random_block(channels, ksize, (1, 2, 3), torch.float16, "cpu")
    x = image(1, channels, 4, 9, torch.float16, True)
    third = channels // 3
    tail = {"BLOCK_P": 32, "BLOCK_O": third, "BLOCK_C": 32, "num_warps": 4, "num_stages": 1}
    config = FUSED | {"kernel": kernel, "BLOCK_O": 16, "BLOCK_N": third, "BLOCK_C": 32}
    y = db.triton_block(x, weights, torch.float16, config | {"tail": tail})
    assert error(y, x, weights) < TOLERANCE[torch.float16]


@pytest.mark.parametrize("channels_last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shortcut", [False, True])
def test_one_launch_agrees_with_float64(dtype: torch.dtype, channels_last: bool, shortcut: bool) -> None:
    weights = random_block(48, 3, (1, 2, 3), dtype, "cpu")
    weights.shortcut = shortcut
    x = image(1, 48, 4, 13, dtype, channels_last)
    y = db.triton_block(x, weights, dtype, FUSED | {"BLOCK_O": 16})
    assert y.stride() == x.stride()
    assert error(y, x, weights) < TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["triton", "phase_split", "unfold_gemm"])
def test_float32_may_be_computed_in_float16(name: str) -> None:
    weights = random_block(24, 3, (1, 2, 3), torch.float32, "cpu")
    x = image(1, 24, 9, 8, torch.float32, False)
    off = error(db.dilated_block(x, weights, name, torch.float16), x, weights)
    assert 1e-6 < off < TOLERANCE[torch.float16]


@settings(max_examples=8)
@given(
    n=st.integers(1, 3),
    h=st.integers(1, 13),
    w=st.integers(1, 13),
    channels=st.sampled_from([3, 12, 30, 48]),
    ksize=st.sampled_from([1, 3, 5]),
    dilations=st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(1, 7)),
    name=st.sampled_from(["triton", "phase_split", "unfold_gemm"]),
)
def test_agrees_at_any_size(
    n: int, h: int, w: int, channels: int, ksize: int, dilations: tuple[int, int, int], name: str
) -> None:
    weights = random_block(channels, ksize, dilations, torch.float32, "cpu")
    x = image(n, channels, h, w, torch.float32, h % 2 == 0)
    assert error(db.dilated_block(x, weights, name), x, weights) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("name", ["triton", "phase_split", "unfold_gemm"])
def test_an_empty_batch_stays_empty(name: str) -> None:
    weights = random_block(24, 3, (1, 2, 3), torch.float16, "cpu")
    x = torch.empty(0, 24, 8, 8, dtype=torch.float16)
    assert db.dilated_block(x, weights, name).shape == x.shape


def test_folded_weights_follow_the_modules() -> None:
    weights = random_block(24, 3, (1, 2, 3), torch.float32, "cpu")
    x = image(1, 24, 6, 6, torch.float32, False)
    db.dilated_block(x, weights, "triton")
    assert weights.gate.norm is not None
    weights.gate.norm.bias.add_(1.0)
    weights.dilated.weight.mul_(0.5)
    assert error(db.dilated_block(x, weights, "triton"), x, weights) < TOLERANCE[torch.float32]


def test_a_part_without_batch_norm_uses_its_bias() -> None:
    weights = random_block(24, 3, (1, 2, 3), torch.float32, "cpu")
    x = image(1, 24, 6, 6, torch.float32, False)
    exact = float64_block(x, weights)
    weight, shift = weights.dilated.folded()
    weights.dilated = db.ConvNorm(weight.float(), None, shift.float())
    for name in db.IMPLEMENTATIONS:
        y = db.dilated_block(x, weights, name)
        torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)
