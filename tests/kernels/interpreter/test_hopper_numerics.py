"""Hopper's variants interpreted: descriptors are emulated, the copy engine's rules included."""

import numpy
import pytest
import torch
import triton

from pdfquarry_kernels import dilated_block as db
from pdfquarry_kernels.aligned import aligned_weight
from pdfquarry_kernels.hopper import describe
from pdfquarry_kernels.hopper_jit import gemm_tma_kernel
from pdfquarry_kernels.problems import float64_block, random_block


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("+")[0].split(".")[:2])


@pytest.mark.skipif(
    version(triton.__version__) < (3, 7) and version(numpy.__version__) >= (2, 4),
    reason="this triton's interpreter cannot loop to a run-time bound with this numpy",
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_gemm_through_descriptors_agrees_with_float64(with_bias: bool) -> None:
    m, n, k = 70, 96, 152
    x, weight = torch.randn(m, k).half(), torch.randn(n, k).half() * 0.1
    bias = torch.randn(n).half()
    y = torch.full((m, n), float("nan"), dtype=torch.float16)
    w = aligned_weight(weight)
    gemm_tma_kernel[(3,)](
        describe(x, [32, 64]),
        describe(w, [64, 64]),
        bias,
        describe(y, [32, 32]),
        m,
        N=n,
        K=k,
        HAS_BIAS=with_bias,
        BLOCK_M=32,
        BLOCK_N=64,
        BLOCK_K=64,
        GROUP_M=2,
        PROGRAMS=3,
    )
    exact = x.double() @ weight.double().T + (bias.double() if with_bias else 0)
    torch.testing.assert_close(y.double(), exact, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("channels_last", [False, True], ids=["nchw", "nhwc"])
def test_block_through_descriptors_agrees_with_float64(channels_last: bool) -> None:
    weights = random_block(48, 3, (1, 2, 5), torch.float16, "cpu")
    x = torch.randn(2, 48, 7, 13).half()
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    config = {"kernel": "tma", "TILE_H": 4, "TILE_W": 8, "num_warps": 4, "num_stages": 1}
    y = db.triton_block(x, weights, torch.float16, config | {"BLOCK_O": 16})
    exact = float64_block(x, weights)
    assert float((y.double() - exact).norm() / exact.norm()) < 1e-3
