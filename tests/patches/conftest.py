"""What the patch tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_environment import environment as environment
from vllm_environment import python as python

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside the tests

from pdfquarry_kernels import arming, vllm_plugin


@pytest.fixture(autouse=True)
def fresh_patches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No patch armed, nothing counted, no fake vLLM: before and after each test."""
    for name in (arming.PATCHES_ENV, vllm_plugin.STATUS_ENV, "VLLM_PLUGINS", "VLLM_USE_V2_MODEL_RUNNER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(arming, "_waiting", {})
    monkeypatch.setattr(arming, "_errors", [])
    monkeypatch.setattr(vllm_plugin, "_counts", dict.fromkeys(vllm_plugin._counts, 0))
    before, finders = set(sys.modules), list(sys.meta_path)
    yield
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("vllm", "mineru_vl_utils", "doclayout_yolo", "mineru"):
            del sys.modules[name]
