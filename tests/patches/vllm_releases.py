"""Files of real releases, fetched with pip into a cache, and vLLM's own decision code run from them.

Nothing fetched is committed. A source distribution of vLLM is 11-47 MB where a wheel is some 400; pip only hands one
out after asking its build backend for the name, and vLLM's backend wants torch and a compiler. So pip is given a
backend of ours for that one question.
"""

from __future__ import annotations

import ast
import importlib.util
import logging
import os
import sys
import tarfile
import tempfile
import zlib
from collections import Counter
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fetched import cache, pip

MODELS = {
    "qwen2_vl": "Qwen2VisionPatchEmbed",
    "qwen2_5_vl": "Qwen2_5_VisionPatchEmbed",
    "qwen3_vl": "Qwen3_VisionPatchEmbed",
}
WANTED = (
    "model_executor/layers/conv.py",
    "model_executor/custom_op.py",
    "utils/torch_utils.py",
    "utils/torch_version.py",
    "plugins/__init__.py",
    *(f"model_executor/models/{model}.py" for model in MODELS),
)
BACKEND = """
import os
import pathlib


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    name, version = os.environ["ASKED_FOR"].split("==")
    folder = pathlib.Path(metadata_directory, f"{name}-{version}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return folder.name
"""


def vllm_source(version: str) -> Path:
    """The folder ``vllm`` with the wanted files of a release; fetched at the first call."""
    files = zlib.crc32(" ".join(WANTED).encode())  # another choice of files is another folder
    kept = cache() / f"vllm-{version}-{files:08x}" / "vllm"
    if kept.is_dir():
        return kept
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        backend = Path(scratch, "backend", "setuptools")
        backend.mkdir(parents=True)
        (backend / "__init__.py").touch()
        (backend / "build_meta.py").write_text(BACKEND)
        pip(
            *("download", "--no-deps", "--no-build-isolation", "--no-binary=vllm", "--no-cache-dir"),
            *("--dest", scratch, f"vllm=={version}"),
            PYTHONPATH=str(backend.parent),
            ASKED_FOR=f"vllm=={version}",
        )
        with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
            for member in archive:
                inside = member.name.partition("/vllm/")[2]
                if member.isfile() and member.name.count("/vllm/") and inside in WANTED:
                    target = Path(scratch, "kept", "vllm", inside)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    content = archive.extractfile(member)
                    assert content is not None
                    target.write_bytes(content.read())
        kept.parent.parent.mkdir(parents=True, exist_ok=True)
        os.replace(Path(scratch, "kept"), kept.parent)
    return kept


@lru_cache(maxsize=64)
def _definition(file: Path, name: str) -> Any:
    """The class or function ``name`` of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return next(node for node in tree.body if getattr(node, "name", "") == name)


class Release:
    """A vLLM release's convolution layer and patch embeddings, run from its own files.

    Args:
        root: its ``vllm`` folder.
        monkeypatch: for the stand-ins of what surrounds these files.
        platform: ``rocm``, ``cuda`` or ``cpu``.
        custom_ops: of the compilation configuration; ``none`` is the compiled default, ``all`` that of eager engines.
        torch_version: the version that the release's predicates see.
    """

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, platform: str, custom_ops: str, torch_version: str
    ) -> None:
        self.root = root
        self._monkeypatch = monkeypatch
        compilation = SimpleNamespace(
            custom_ops=[custom_ops], enabled_custom_ops=Counter(), disabled_custom_ops=Counter(), mode=3
        )
        logger = logging.getLogger("stand-in")
        logger.warning_once = logger.warning  # type: ignore[attr-defined]
        kinds = ("rocm", "cuda", "cpu", "tpu", "xpu", "out_of_tree")
        current = SimpleNamespace(**{f"is_{kind}": (lambda kind=kind: kind == platform) for kind in kinds})
        self._module("vllm")
        self._module("vllm.config", get_cached_compilation_config=lambda: compilation)
        modes = SimpleNamespace(NONE=0, STOCK_TORCH_COMPILE=1, DYNAMO_TRACE_ONCE=2, VLLM_COMPILE=3)
        self._module("vllm.config.compilation", CompilationMode=modes)
        self._module("vllm.logger", init_logger=lambda name: logger)
        self._module("vllm.platforms", current_platform=current)
        self._module("vllm.utils")
        self._module("vllm.model_executor")
        self._module("vllm.model_executor.utils", maybe_disable_graph_partition=lambda backend: {})
        self._module("vllm.model_executor.layers")
        self._module("vllm.model_executor.models")
        self.layer: Any = None
        if (root / "model_executor/layers/conv.py").is_file():
            self._module("vllm.utils.torch_utils", **self._predicates(torch_version))
            self._real("vllm.model_executor.custom_op")
            self.layer = self._real("vllm.model_executor.layers.conv").Conv3dLayer

    def patch_embed(self, model: str) -> type | None:
        """The release's own class, as a member of its module; None if the release does not have that model."""
        file = self.root / f"model_executor/models/{model}.py"
        if not file.is_file():
            return None
        import torch

        node = _definition(file, MODELS[model])
        node.decorator_list = []  # support_torch_compile needs a whole engine
        module = self._module(f"vllm.model_executor.models.{model}", torch=torch, nn=torch.nn)
        if self.layer is not None:
            module.Conv3dLayer = self.layer  # type: ignore[attr-defined]
        exec(compile(ast.Module([node], []), str(file), "exec"), vars(module))
        cls: type = vars(module)[MODELS[model]]
        return cls

    def _predicates(self, torch_version: str) -> dict[str, Any]:
        from packaging import version

        file = self.root / "utils/torch_version.py"  # where late releases have them
        if not file.is_file():
            file = self.root / "utils/torch_utils.py"
        names = ("_is_torch_equal_or_newer", "is_torch_equal_or_newer", "_is_torch_equal", "is_torch_equal")
        space: dict[str, Any] = {
            "torch": SimpleNamespace(__version__=torch_version),
            "version": version,
            "Version": version.Version,
        }
        exec(compile(ast.Module([_definition(file, name) for name in names], []), str(file), "exec"), space)
        return {name: space[name] for name in names}

    def _module(self, name: str, **contents: Any) -> ModuleType:
        module = ModuleType(name)
        module.__spec__ = importlib.util.spec_from_loader(name, None, is_package=True)
        module.__path__ = []
        vars(module).update(contents)
        self._monkeypatch.setitem(sys.modules, name, module)
        return module

    def _real(self, name: str) -> ModuleType:
        file = self.root.joinpath(*name.split(".")[1:]).with_suffix(".py")
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        self._monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module
