"""What a caller of the dilated block and of the model patch relies on, without a GPU."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pdfquarry_kernels import dilated_block as db
from pdfquarry_kernels.doclayout import FastDilatedBlock, patch_doclayout
from pdfquarry_kernels.problems import random_block

WEIGHTS = random_block(12, 3, (1, 2, 3), torch.float32, "cpu")
X = torch.randn(1, 12, 6, 7)


class Conv(nn.Module):
    """Convolution, batch norm, SiLU, with doclayout_yolo's attribute names."""

    def __init__(self, into: int, out: int, k: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, out, k, padding=k // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(out)
        self.act = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.act(self.bn(self.conv(x)))
        return y


class DilatedBlock(nn.Module):
    """The same computation as doclayout_yolo's class of this name, written anew."""

    def __init__(self, c: int, k: int, dilation: list[int], fuse: str = "glu") -> None:
        super().__init__()
        self.dilation, self.k, self.fuse, self.add = dilation, k, fuse, True
        self.dcv, self.cv2 = Conv(c, c, k), Conv(c, c)
        self.conv_gating = Conv(3 * c, 3 * c, groups=3 * c)
        self.conv1x1 = Conv(3 * c, c, groups=c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def branch(d: int) -> torch.Tensor:
            y = F.conv2d(x, self.dcv.conv.weight, padding=d * (self.k // 2), dilation=d)
            z: torch.Tensor = self.cv2(self.dcv.act(self.dcv.bn(y)))
            return z

        z = torch.cat([branch(d) for d in self.dilation], 1)
        out: torch.Tensor = self.conv1x1(z * torch.sigmoid(self.conv_gating(z)))
        return x + out


def model(blocks: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(*(nn.Sequential(nn.Conv2d(12, 12, 1), DilatedBlock(12, 3, [1, 2, 3])) for _ in range(blocks)))
    made.train()(torch.randn(4, 12, 16, 16))
    return made.eval().requires_grad_(False)


@pytest.mark.parametrize("x", [X[0], X[:, :11]])
def test_a_wrong_shape_names_the_argument(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"^x: \[N, 12, H, W\] is needed"):
        db.dilated_block(x, WEIGHTS, "native")


def test_a_dtype_mix_or_another_device_names_the_argument() -> None:
    with pytest.raises(TypeError, match=r"^weights: are torch\.float32 while x is torch\.float16"):
        db.dilated_block(X.half(), WEIGHTS, "native")
    with pytest.raises(ValueError, match=r"^weights: are on cpu while x is on meta"):
        db.dilated_block(X.to("meta"), WEIGHTS, "native")
    with pytest.raises(TypeError, match=r"^compute_dtype: "):
        db.dilated_block(X, WEIGHTS, "triton", torch.int8)


@pytest.mark.parametrize("implementation", ["auto", "triton", "phase_split", "unfold_gemm"])
def test_a_cpu_tensor_is_refused_where_a_gpu_is_needed(implementation: str) -> None:
    with pytest.raises(ValueError, match=r"^x: a GPU tensor is needed"):
        db.dilated_block(X, WEIGHTS, implementation)


def test_an_unknown_implementation_and_a_gradient_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^implementation: .*'miopen'"):
        db.dilated_block(X, WEIGHTS, "miopen")
    with pytest.raises(RuntimeError, match=r"^x: .*inference only"):
        db.dilated_block(X.clone().requires_grad_(), WEIGHTS, "native")


def test_weights_that_do_not_make_a_block_are_refused() -> None:
    parts = (WEIGHTS.dilated, WEIGHTS.pointwise, WEIGHTS.gate, WEIGHTS.grouped)
    with pytest.raises(ValueError, match=r"^dilations: three"):
        db.BlockWeights(*parts, (1, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^grouped: weight"):
        db.BlockWeights(*parts[:3], WEIGHTS.gate, (1, 2, 3))


@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [(7, 9), (1, 4), (12, 12)])
@pytest.mark.parametrize("convolve", [db._phase_split, db._unfold_gemm])
def test_both_decompositions_are_the_dilated_convolution(
    convolve: Callable[..., torch.Tensor], size: tuple[int, int], d: int
) -> None:
    x, weight = torch.randn(2, 3, *size).double(), torch.randn(4, 3, 5, 5).double()
    expected = F.conv2d(x, weight, padding=2 * d, dilation=d)
    torch.testing.assert_close(convolve(x, weight, d), expected)


def test_patching_swaps_every_block_and_keeps_the_result() -> None:
    network, x = model(), torch.randn(2, 12, 9, 8)
    expected = network(x)
    names = set(network.state_dict())
    assert patch_doclayout(network, "native") == 3
    assert sum(isinstance(m, FastDilatedBlock) for m in network.modules()) == 3
    assert len(network.state_dict()) == len(names)
    torch.testing.assert_close(network(x), expected)


def test_patching_twice_changes_only_the_implementation() -> None:
    network, x = model(), torch.randn(1, 12, 5, 5)
    expected = network(x)
    patch_doclayout(network, "triton")
    assert patch_doclayout(network, "native") == 3
    torch.testing.assert_close(network(x), expected)


def test_a_patched_model_may_change_its_type_and_its_weights() -> None:
    network, x = model(), torch.randn(1, 12, 5, 5)
    patch_doclayout(network, "native")
    other = model()
    half = torch.bfloat16
    torch.testing.assert_close(network.to(half)(x.to(half)), other.to(half)(x.to(half)))


def test_a_model_without_such_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^model: holds no DilatedBlock"):
        patch_doclayout(nn.Sequential(nn.Conv2d(3, 3, 1)))
    with pytest.raises(ValueError, match=r"^implementation: "):
        patch_doclayout(model(), "miopen")
    with pytest.raises(ValueError, match=r"^block: .*fuse='sum'"):
        patch_doclayout(nn.Sequential(DilatedBlock(12, 3, [1, 2, 3], fuse="sum")), "native")
