"""DocLayout-YOLO gets our block when it is loaded; other layout models are recognised and left alone."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

import doclayout
from fetched import installed
from pdfquarry_kernels import arming, patches, vllm_plugin


@pytest.mark.slow
def test_a_real_doclayout_yolo_has_our_blocks_when_loaded_and_computes_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    done = doclayout.run(Path(__file__).with_name("doclayout_try.py"), tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))[6:])
    assert found.pop("outputs") > 0 and found.pop("difference") < 1e-5
    assert found.pop("profiled") == ["DocLayout-YOLO, as written", "DocLayout-YOLO, patched"]
    blocks = 8 if torch.version.hip else 0
    assert found == {"here": blocks, "kind": "doclayout-yolo", "forced": 8, "again": 8, "predicted": 1, "errors": []}


@pytest.mark.slow
@pytest.mark.parametrize(("version", "pp"), [("2.7.0", False), ("3.0.0", True)])
def test_the_layout_model_of_a_real_mineru_is_recognised(
    version: str, pp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed(f"mineru=={version}")))
    importlib.invalidate_caches()
    patch = patches._pp_doclayout()
    assert not patch.needed and not patch.active
    assert ("left alone" in patch.why) == pp


def model(name: str) -> Any:
    torch = pytest.importorskip("torch")
    return torch.nn.Sequential(type(name, (torch.nn.Module,), {})())


def test_a_pp_doclayout_model_is_left_alone() -> None:
    found = model("PPDocLayoutV2ForObjectDetection")
    assert patches.layout_kind(found) == "pp-doclayout"
    before = list(found.modules())
    assert patches.patch_loaded(found) == 0 and list(found.modules()) == before
    assert patches.layout_kind(model("Linear")) == "other"


def test_a_block_runs_the_librarys_convolution_on_the_cpu() -> None:
    torch = pytest.importorskip("torch")
    block = model("Block")
    patches._native_on_cpu(block, (torch.zeros(1),))
    assert block.implementation == "native"
    patches._native_on_cpu(block, (torch.zeros(1, device="meta"),))
    assert block.implementation == "native"


def test_every_patch_is_listed_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "package_folder", lambda package: None)
    listed = patches.list_patches()
    assert len(listed) == 4 and len({patch.name for patch in listed}) == 4
    assert all(patch.needed is False and not patch.active and "not installed" in patch.why for patch in listed)


def test_a_patch_that_is_switched_off_is_listed_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tmp_path / "mineru_vl_utils/vlm_client/vllm_async_engine_client.py"
    client.parent.mkdir(parents=True)
    client.write_text("        self.tokenizer = vllm_async_llm.tokenizer.get_lora_tokenizer()\n")
    monkeypatch.setattr(patches, "package_folder", lambda package: tmp_path / "mineru_vl_utils")
    assert patches._lora_patch().needed and patches._lora_patch().active
    monkeypatch.setenv(arming.PATCHES_ENV, "off")
    patch = patches._lora_patch()
    assert patch.needed and not patch.active and "PDFQUARRY_PATCHES=off" in patch.why


def test_a_vllm_that_cannot_be_asked_is_listed_as_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("raise ImportError('libcuda.so.1 is missing')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    plugin = importlib.metadata.EntryPoint("pdfquarry", f"{vllm_plugin.__name__}:register", "vllm.general_plugins")
    for points, told in (([plugin], ""), ([], "not installed in this environment")):
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group, found=points: found)
        patch = patches._vllm_patch()
        assert patch.needed is None and "libcuda.so.1 is missing" in patch.why
        assert patch.active == bool(points) and told in patch.why


def test_a_guide_patch_without_a_known_form_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "vllm/model_executor/models/qwen2_vl.py"
    file.parent.mkdir(parents=True)
    file.write_text("class Qwen2VisionPatchEmbed:\n    def forward(self, x):\n        return self.proj(x)\n")
    (tmp_path / "vllm/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    with pytest.raises(ValueError, match="nothing written") as raised:
        patches.write_guide_patch(tmp_path / "out")
    assert "\n" not in str(raised.value) and not (tmp_path / "out").exists()
