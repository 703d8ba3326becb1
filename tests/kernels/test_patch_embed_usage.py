"""What a caller of the patch embedding relies on, without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pdfquarry_kernels.aligned import aligned_weight
from pdfquarry_kernels.patch_embed import IMPLEMENTATIONS, patch_embed

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "kernels")}
X = torch.randn(5, 96)
W = torch.randn(8, 3, 2, 4, 4)
B = torch.randn(8)


@pytest.mark.parametrize(
    ("argument", "x", "weight", "bias"),
    [
        ("x", X[:, :95], W, None),
        ("x", X.view(5, 3, 4, 2, 4), W, None),
        ("x", X.flatten(), W, None),
        ("weight", X, W.flatten(1), None),
        ("weight", X, torch.randn(8, 3, 2, 4, 5), None),
        ("bias", X, W, B[:7]),
    ],
)
def test_a_wrong_shape_names_the_argument(
    argument: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    with pytest.raises(ValueError, match=f"^{argument}: "):
        patch_embed(x, weight, bias, "linear")


def test_a_dtype_mix_names_the_argument() -> None:
    with pytest.raises(TypeError, match=r"^weight: is torch\.float16 while x is torch\.float32"):
        patch_embed(X, W.half(), None, "linear")
    with pytest.raises(TypeError, match=r"^bias: "):
        patch_embed(X, W, B.half(), "linear")
    with pytest.raises(TypeError, match=r"^x: "):
        patch_embed(X.double(), W.double(), None, "linear")


def test_another_device_names_the_argument() -> None:
    with pytest.raises(ValueError, match=r"^weight: is on meta while x is on cpu"):
        patch_embed(X, W.to("meta"), None, "linear")


@pytest.mark.parametrize("implementation", ["auto", "triton_gemm", "triton_dot"])
def test_a_cpu_tensor_is_refused_where_a_gpu_is_needed(implementation: str) -> None:
    with pytest.raises(ValueError, match=r"^x: a GPU tensor is needed, got one on cpu"):
        patch_embed(X, W, None, implementation)


def test_an_unknown_implementation_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^implementation: .*triton_gemm.*'cutlass'"):
        patch_embed(X, W, None, "cutlass")


def test_a_gradient_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"^weight: .*inference only"):
        patch_embed(X, W.clone().requires_grad_(), None, "linear")
    with torch.no_grad():
        patch_embed(X, W.clone().requires_grad_(), None, "linear")


@pytest.mark.parametrize("implementation", ["conv3d", "linear", "linear_aligned"])
def test_torchs_own_ways_run_anywhere(implementation: str) -> None:
    exact = X.double() @ W.double().flatten(1).T + B.double()
    y = patch_embed(X, W, B, implementation)
    torch.testing.assert_close(y.double(), exact, rtol=1e-4, atol=1e-4)


def test_torch_compile_takes_the_call_whole() -> None:
    compiled = torch.compile(lambda x, w, b: patch_embed(x, w, b, "linear") * 2, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for rows in (5, 3):
            torch.testing.assert_close(compiled(X[:rows], W, B), patch_embed(X[:rows], W, B, "linear") * 2)


def test_the_operator_keeps_torchs_rules() -> None:
    operator = torch.ops.pdfquarry.patch_embed.default
    torch.library.opcheck(operator, (X, W, B, "linear"), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_shapes_are_known_without_running(implementation: str) -> None:
    with torch._subclasses.FakeTensorMode():
        fake = torch.empty(7, 96, device="cuda"), torch.empty(8, 3, 2, 4, 4, device="cuda")
        y = torch.ops.pdfquarry.patch_embed(*fake, None, implementation)
    assert y.shape == (7, 8) and y.device.type == "cuda"


def test_tf32_stays_off_and_settings_come_back() -> None:
    from pdfquarry_kernels.guards import true_fp32

    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = matmul.fp32_precision, conv.fp32_precision
    matmul.fp32_precision = conv.fp32_precision = "tf32"
    try:
        with true_fp32(torch.float32):
            assert (matmul.fp32_precision, conv.fp32_precision) == ("ieee", "ieee")
        assert (matmul.fp32_precision, conv.fp32_precision) == ("tf32", "tf32")
    finally:
        matmul.fp32_precision, conv.fp32_precision = before


def test_the_aligned_copy_follows_its_weight() -> None:
    weight = torch.randn(4, 3, 2, 14, 14, dtype=torch.bfloat16)
    first = aligned_weight(weight)
    assert first.stride(0) * first.element_size() % 128 == 0
    assert torch.equal(first, weight.flatten(1))
    assert aligned_weight(weight) is first
    weight.mul_(2)
    assert torch.equal(aligned_weight(weight), weight.flatten(1))


def test_importing_the_package_needs_neither_torch_nor_triton() -> None:
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'triton'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import pdfquarry_kernels, pdfquarry_kernels.configs\n"
        "assert pdfquarry_kernels.configs.lookup('gfx1100', 'patch_embed', 'bf16', {}, 1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)


def test_the_folder_does_not_shadow_the_package_called_kernels() -> None:
    """Hugging Face has a package ``kernels``; from our root, as jobs run, our folder must not answer to that name."""
    code = """
import importlib.util, pathlib
from importlib.metadata import distributions
import pdfquarry_kernels, transformers
from transformers.utils import is_kernels_available

root = pathlib.Path(pdfquarry_kernels.__file__).parents[1].resolve()
spec = importlib.util.find_spec("kernels")
places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or [])]
assert not any(pathlib.Path(p).resolve().is_relative_to(root) for p in places if p), places
assert is_kernels_available() == any(d.name == "kernels" for d in distributions())
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, env=ENVIRONMENT, cwd=ROOT)
