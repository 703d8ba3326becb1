"""The plugin changes what it should, once, and nothing else; on fake model files, without vLLM."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pdfquarry_kernels import arming, vllm_plugin

MODULE = "vllm.model_executor.models.qwen2_vl"
FAKE = """
import torch

class Conv3dLayer(torch.nn.Module):
    # The shape of vLLM's layer: chosen at construction, decided by a predicate in forward.
    def __init__(self, channels, out, kernel):
        super().__init__()
        self.kernel_size = self.stride = kernel
        self.padding, self.dilation, self.groups = (0, 0, 0), (1, 1, 1), 1
        self.weight = torch.nn.Parameter(torch.randn(out, channels, *kernel))
        self.bias = None

    def forward(self, x):
        if LINEAR:
            return torch.nn.functional.linear(x.flatten(1), self.weight.flatten(1))
        return torch.nn.functional.conv3d(x, self.weight, stride=self.stride)

class Qwen2VisionPatchEmbed(torch.nn.Module):
    def __init__(self, patch_size=4, temporal_patch_size=2, in_channels=3, embed_dim=8):
        super().__init__()
        self.patch_size, self.temporal_patch_size, self.embed_dim = patch_size, temporal_patch_size, embed_dim
        kernel = (temporal_patch_size, patch_size, patch_size)
        self.proj = PROJ

    def forward(self, x):
        x = x.view(x.shape[0], -1, self.temporal_patch_size, self.patch_size, self.patch_size)
        return self.proj(x).view(x.shape[0], self.embed_dim)
"""
CONV3D = "torch.nn.Conv3d(in_channels, embed_dim, kernel, stride=kernel, bias=False)"
LAYER = "Conv3dLayer(in_channels, embed_dim, kernel)"
SEQUENTIAL = "torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(96, embed_dim))"


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a fake vLLM with one model file and makes it importable."""
    pytest.importorskip("torch")

    def write(proj: str = CONV3D, linear: bool = False) -> None:
        file = tmp_path.joinpath(*MODULE.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"LINEAR = {linear}\n" + FAKE.replace("PROJ", proj))
        for package in ("vllm", "vllm.model_executor", "vllm.model_executor.models"):
            tmp_path.joinpath(*package.split("."), "__init__.py").touch()
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()

    return write


def embed_once(**where: Any) -> tuple[Any, Any, Any]:
    """Import the fake model, build it, run it: the embedding, its output, and torch's convolution of the same input."""
    import torch

    embed = importlib.import_module(MODULE).Qwen2VisionPatchEmbed()
    x = torch.randn(5, 3 * 2 * 4 * 4)
    with torch.inference_mode():
        y = embed(x)
        weight = getattr(embed.proj, "weight", None)
        wanted = None if weight is None else torch.nn.functional.conv3d(x.view(5, 3, 2, 4, 4), weight).flatten(1)
    return embed, y, wanted


@pytest.mark.parametrize(
    ("proj", "linear", "switch", "calls"),
    [
        (CONV3D, False, "", 1),
        (LAYER, False, "", 1),
        (LAYER, True, "", 0),
        (SEQUENTIAL, False, "", 0),
        (LAYER, True, "force", 1),
        (SEQUENTIAL, False, "force", 0),
        (CONV3D, False, "0", 0),
        (CONV3D, False, "off", 0),
    ],
)
def test_only_a_conv3d_is_replaced(
    fake_vllm: Any, monkeypatch: pytest.MonkeyPatch, proj: str, linear: bool, switch: str, calls: int
) -> None:
    import torch

    fake_vllm(proj, linear)
    monkeypatch.setenv(arming.PATCHES_ENV, switch)
    vllm_plugin.register()
    _, y, wanted = embed_once()
    assert wanted is None or torch.allclose(y, wanted, atol=1e-4)
    status = vllm_plugin.status()
    assert (status.calls, status.convolving) == (calls, calls)
    assert status.errors == ()


def test_registering_again_and_again_changes_nothing_more(fake_vllm: Any) -> None:
    fake_vllm()
    vllm_plugin.register()
    vllm_plugin.register()
    embed_once()
    cls = importlib.import_module(MODULE).Qwen2VisionPatchEmbed
    forward, init = cls.forward, cls.__init__
    vllm_plugin.register()
    vllm_plugin.patch_class(cls)
    assert (cls.forward, cls.__init__) == (forward, init)
    assert sum(isinstance(finder, arming._Finder) for finder in sys.meta_path) == 1
    assert vllm_plugin.status().calls == 1


def test_a_model_file_that_was_imported_before_is_patched_too(fake_vllm: Any) -> None:
    fake_vllm()
    importlib.import_module(MODULE)
    vllm_plugin.register()
    assert vllm_plugin.status().classes == ("Qwen2VisionPatchEmbed",)
    embed_once()
    assert vllm_plugin.status().calls == 1


def test_the_projection_and_its_checkpoint_stay_as_they_were(fake_vllm: Any) -> None:
    import torch

    fake_vllm()
    vllm_plugin.register()
    embed, _, _ = embed_once()
    assert type(embed.proj) is torch.nn.Conv3d
    assert {name: tuple(t.shape) for name, t in embed.state_dict().items()} == {"proj.weight": (8, 3, 2, 4, 4)}
    weight = torch.randn(8, 3, 2, 4, 4)
    embed.load_state_dict({"proj.weight": weight})
    x = torch.randn(3, 96)
    with torch.inference_mode():
        assert torch.allclose(embed(x), x @ weight.flatten(1).T, atol=1e-4)


def test_whoever_wants_gradients_or_replaces_the_projection_gets_vllms_own_way(fake_vllm: Any) -> None:
    import torch

    fake_vllm()
    vllm_plugin.register()
    embed, _, _ = embed_once()
    embed(torch.randn(3, 96)).sum().backward()
    assert embed.proj.weight.grad is not None
    embed.proj = torch.nn.Conv3d(3, 8, (2, 4, 4), (2, 4, 4))
    with torch.inference_mode():
        embed(torch.randn(3, 96))
    assert vllm_plugin.status().calls == 1


@pytest.mark.parametrize(
    "options", [{"stride": (2, 2, 2)}, {"padding": 1}, {"groups": 3}, {"dilation": 2}, {"kernel_size": (2, 4, 3)}]
)
def test_a_convolution_that_is_no_patch_projection_is_refused(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    settings = {"kernel_size": (2, 4, 4), "stride": (2, 4, 4)} | options
    assert not vllm_plugin.is_patch_projection(torch.nn.Conv3d(3, 9, **settings))


def test_a_vllm_without_these_classes_is_left_in_peace(fake_vllm: Any, tmp_path: Path) -> None:
    fake_vllm()
    tmp_path.joinpath(*MODULE.split(".")).with_suffix(".py").write_text("value = 1\n")
    vllm_plugin.register()
    assert importlib.import_module(MODULE).value == 1
    assert vllm_plugin.status().classes == () and vllm_plugin.status().errors == ()


def test_an_error_in_a_patch_is_told_and_does_not_reach_the_program(fake_vllm: Any, tmp_path: Path) -> None:
    fake_vllm()
    tmp_path.joinpath(*MODULE.split(".")).with_suffix(".py").write_text("class Qwen2VisionPatchEmbed: pass\n")
    vllm_plugin.register()
    importlib.import_module(MODULE)
    assert len(vllm_plugin.status().errors) == 1 and "AttributeError" in vllm_plugin.status().errors[0]
    assert not vllm_plugin.active()


def test_each_process_writes_its_status(fake_vllm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm()
    monkeypatch.setenv(vllm_plugin.STATUS_ENV, str(tmp_path / "status"))
    vllm_plugin.register()
    embed_once()
    (status,) = vllm_plugin.read_status(tmp_path / "status")
    assert status == vllm_plugin.status()
    assert (status.classes, status.convolving, status.calls) == (("Qwen2VisionPatchEmbed",), 1, 1)


def test_the_verdict_says_yes_only_if_a_model_was_decided_on() -> None:
    def status(**changes: Any) -> vllm_plugin.Status:
        known = {"pid": 1, "armed": True, "classes": (), "convolving": 0, "left_alone": 0, "calls": 0, "errors": ()}
        return vllm_plugin.Status(**known | changes)

    assert vllm_plugin.verdict([status(), status(convolving=1)]) == (
        True,
        "patch embedding: ours in 1, vLLM's own linear path in 0 of 1 models",
    )
    assert vllm_plugin.verdict([status(left_alone=2)])[0]
    for processes in ([], [status()], [status(convolving=1), status(errors=("a module: an error",))]):
        good, line = vllm_plugin.verdict(processes)
        assert not good and "\n" not in line


def test_a_status_folder_that_cannot_be_written_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_plugin.STATUS_ENV, "/dev/null/folder")
    vllm_plugin.register()
    assert vllm_plugin.active()


def test_importing_the_patches_imports_no_torch_triton_or_vllm() -> None:
    code = (
        "import json, sys; from pdfquarry_kernels import patches; patches.apply();"
        "print(json.dumps(sorted({'torch', 'triton', 'vllm', 'mineru_vl_utils'} & set(sys.modules))))"
    )
    kernels = Path(vllm_plugin.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(kernels)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_torch_compile_takes_a_patched_forward(fake_vllm: Any) -> None:
    import torch

    fake_vllm()
    vllm_plugin.register()
    embed, _, _ = embed_once()
    x = torch.randn(5, 96)
    with torch.inference_mode():
        compiled = torch.compile(embed, backend="eager", fullgraph=True)
        assert torch.allclose(compiled(x), embed(x), atol=1e-4)
