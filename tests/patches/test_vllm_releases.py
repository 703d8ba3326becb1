"""The decision table of docs/patches.md, from the releases' own code."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from vllm_releases import MODELS, Release, vllm_source

from pdfquarry_kernels import guide_patch, patches, vllm_plugin

pytestmark = pytest.mark.slow

TORCHES = ("2.8.0+rocm6.4", "2.9.0a0+git1c57644", "2.9.0.dev20250901", "2.9.0+rocm6.4", "2.9.1", "2.10.0", "2.11.0")
# Where an eager engine takes the linear path; None: no Conv3dLayer, so both kinds of engine take Conv3d.
EAGER_LINEAR: dict[str, set[str] | None] = {
    "0.10.2": None,
    "0.11.0": None,
    "0.11.1": {"2.9.0+rocm6.4"},
    "0.13.0": {"2.9.0+rocm6.4"},
    "0.14.1": {"2.9.0+rocm6.4", "2.9.1"},
    "0.18.1": {"2.9.0+rocm6.4", "2.9.1"},
    "0.19.0": {"2.9.0+rocm6.4", "2.9.1", "2.10.0", "2.11.0"},
    "0.20.2": {"2.9.0+rocm6.4", "2.9.1", "2.10.0", "2.11.0"},
    "0.33.0": {"2.9.0+rocm6.4", "2.9.1", "2.10.0", "2.11.0"},
}
Load = Callable[..., Release]


def expected(version: str, custom_ops: str, torch_version: str) -> str:
    linear_on = EAGER_LINEAR[version]
    if linear_on is None:
        return "conv3d"
    return "linear" if custom_ops == "none" or torch_version in linear_on else "conv3d"


@pytest.fixture(params=EAGER_LINEAR)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def load(version: str, monkeypatch: pytest.MonkeyPatch) -> Load:
    pytest.importorskip("torch")
    root = vllm_source(version)
    return lambda *arguments: Release(root, monkeypatch, *arguments)


@pytest.mark.parametrize("platform", ["rocm", "cuda"])
@pytest.mark.parametrize("custom_ops", ["none", "all"])
def test_the_release_takes_the_path_that_the_table_says(
    version: str, load: Load, platform: str, custom_ops: str
) -> None:
    for torch_version in TORCHES:
        release = load(platform, custom_ops, torch_version)
        for model in MODELS:
            cls = release.patch_embed(model)
            if cls is None:
                assert (version, model) == ("0.10.2", "qwen3_vl")
                continue
            taken = vllm_plugin.path_of(cls().proj)
            assert taken == expected(version, custom_ops, torch_version), (model, torch_version)


def test_what_is_listed_without_an_engine_is_what_an_engine_does(version: str, load: Load) -> None:
    for torch_version in TORCHES:
        layer = load("rocm", "all", torch_version).layer
        if layer is None:
            assert EAGER_LINEAR[version] is None
            continue
        found = patches.layer_paths(layer, "hip")
        assert found == {
            how: expected(version, ops, torch_version) for how, ops in (("compiled", "none"), ("eager", "all"))
        }


def test_from_0_19_on_the_cpu_is_always_linear(version: str, load: Load) -> None:
    cls = load("cpu", "all", "2.8.0").patch_embed("qwen2_vl")
    assert cls is not None
    release = tuple(map(int, version.split(".")))
    if release >= (0, 19):
        assert vllm_plugin.path_of(cls().proj) == "linear"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("custom_ops", ["none", "all"])
def test_ours_runs_where_the_release_would_convolve_and_only_there(
    version: str, load: Load, model: str, custom_ops: str
) -> None:
    import torch

    for torch_version in ("2.8.0+rocm6.4", "2.9.1", "2.11.0"):
        cls: Any = load("rocm", custom_ops, torch_version).patch_embed(model)
        if cls is None:
            return
        own_forward = cls.forward
        vllm_plugin.patch_class(cls)
        torch.manual_seed(1)
        embed = cls(4, 2, 3, 24)
        for parameter in embed.parameters():  # vLLM leaves them uninitialised until the checkpoint is loaded
            torch.nn.init.normal_(parameter)
        x = torch.randn(10, 3 * 2 * 4 * 4)
        before = vllm_plugin.status().calls
        with torch.inference_mode():
            assert torch.allclose(embed(x), own_forward(embed, x), atol=1e-4)
        ours = vllm_plugin.status().calls - before
        assert ours == (expected(version, custom_ops, torch_version) == "conv3d"), torch_version
        assert embed.proj.weight.shape == (24, 3, 2, 4, 4)
        assert sorted(embed.state_dict()) == ["proj.bias"] * (model == "qwen3_vl") + ["proj.weight"]


def test_the_release_loads_the_plugin_by_its_entry_point(
    version: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = load("rocm", "none", "2.9.1")
    monkeypatch.setitem(sys.modules, "vllm.envs", envs := ModuleType("vllm.envs"))
    sys.modules["vllm"].envs = envs  # type: ignore[attr-defined]
    envs.VLLM_PLUGINS = None  # type: ignore[attr-defined]
    point = importlib.metadata.EntryPoint("pdfquarry", "pdfquarry_kernels.vllm_plugin:register", "vllm.general_plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    spec = importlib.util.spec_from_file_location("vllm.plugins", release.root / "plugins/__init__.py")
    assert spec and spec.loader
    plugins = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugins)
    assert not vllm_plugin.active()
    plugins.load_general_plugins()
    assert vllm_plugin.active()


def test_the_guides_edit_applies_and_is_taken_back(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    files = {}
    for file in vllm_source(version).rglob("*.py"):
        target = site / "vllm" / file.relative_to(vllm_source(version))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
        files[target] = file.read_bytes()
    (site / "vllm/__init__.py").touch()
    monkeypatch.syspath_prepend(str(site))
    written = guide_patch.write_guide_patch(tmp_path / "out")
    assert [path.name.partition("-")[0] for path in written] == ["vllm"]
    for arguments in ([], ["-R"]):
        subprocess.run(["git", "apply", "-p1", *arguments, str(written[0])], cwd=site, check=True)
        changed = sorted(path.stem for path, before in files.items() if path.read_bytes() != before)
        assert changed == ([] if arguments else sorted(path.stem for path in files if path.stem in MODELS))
        for path in files:
            compile(path.read_bytes(), str(path), "exec")
