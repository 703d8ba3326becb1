"""The patches: apply them in this process, and say of each whether it is needed and active here."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pdfquarry_kernels import mineru, vllm_plugin
from pdfquarry_kernels.arming import PATCHES_ENV, mode, when_imported
from pdfquarry_kernels.guide_patch import write_guide_patch

__all__ = ["PATCHES_ENV", "Patch", "apply", "layout_kind", "list_patches", "mode", "write_guide_patch"]

YOLO_MODULE = "doclayout_yolo.models.yolov10.model"
_WRAPPED = "_pdfquarry_original"


@dataclass(frozen=True)
class Patch:
    """One patch, seen from this process.

    Attributes:
        name: what it changes.
        needed: whether the installed packages call for it on this machine; None if that can't be told.
        active: whether programs that this environment starts get it.
        why: the reason for ``needed`` and ``active``, in one line.
    """

    name: str
    needed: bool | None
    active: bool
    why: str


def apply() -> None:
    """Arm every patch in this process; to be called before models are loaded. May be called again."""
    if mode() == "off":
        return
    vllm_plugin.register()
    mineru.arm()
    when_imported(YOLO_MODULE, _patch_yolo)


def list_patches() -> list[Patch]:
    """Each patch, needed and active here; imports vLLM's convolution layer and torch where they are installed."""
    return [_vllm_patch(), _lora_patch(), _doclayout_patch(), _pp_doclayout()]


def _why_off() -> str:
    return f"switched off by {PATCHES_ENV}={os.environ.get(PATCHES_ENV, '')}" if mode() == "off" else ""


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def package_folder(package: str) -> Path | None:
    """Where an importable package is, without importing it."""
    spec = importlib.util.find_spec(package)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _vllm_patch() -> Patch:
    name = "vLLM: patch embedding without Conv3d"
    if package_folder("vllm") is None:
        return Patch(name, False, False, "vLLM is not installed")
    try:
        paths = installed_paths()
    except Exception as error:  # a vLLM that can't be asked is a finding, not a crash
        needed, why = (
            None,
            f"vLLM can't be asked here ({type(error).__name__}: {error}); each model is when it is built",
        )
    else:
        needed = "conv3d" in paths.values()
        why = ", ".join(f"{how}: {path}" for how, path in paths.items())
    group = importlib.metadata.entry_points(group="vllm.general_plugins")
    allowed = os.environ.get("VLLM_PLUGINS")
    hinder = _why_off()
    if not any(point.value.startswith(vllm_plugin.__name__) for point in group):
        hinder = hinder or "pdf-quarry is not installed in this environment, so vLLM does not load the plugin"
    if allowed is not None and "pdfquarry" not in allowed.split(","):
        hinder = hinder or "VLLM_PLUGINS leaves out pdfquarry"
    return Patch(name, needed, not hinder, f"{why}; {hinder}" if hinder else why)


def installed_paths() -> dict[str, str]:
    """Which way the installed vLLM's patch embedding goes here: ``{"compiled": "linear", "eager": "conv3d"}``.

    The release's own layer is asked, once as dispatched with ``custom_ops=["none"]`` (the compiled default) and once
    with ``["all"]`` (``enforce_eager``). Releases without such a layer use torch's Conv3d in both.

    Raises:
        ImportError: vLLM can't be imported.
    """
    from vllm.platforms import current_platform

    if importlib.util.find_spec("vllm.model_executor.layers.conv") is None:
        return dict.fromkeys(("compiled", "eager"), "conv3d")
    from vllm.model_executor.layers.conv import Conv3dLayer

    on = "hip" if current_platform.is_rocm() else "cpu" if current_platform.is_cpu() else "cuda"
    return layer_paths(Conv3dLayer, on)


def layer_paths(layer: type, platform: str) -> dict[str, str]:
    """As ``installed_paths``, for a ``Conv3dLayer`` class and ``hip``, ``cuda`` or ``cpu``."""

    def asked(method: str) -> str:
        # The dispatch needs an engine's configuration, which there is none of here; it would pick one of these two.
        answer = type("Conv3dLayer", (layer,), {"dispatch_forward": lambda self, **_: getattr(self, method)})
        kernel = (2, 14, 14)
        return vllm_plugin.path_of(answer(3, 8, kernel_size=kernel, stride=kernel, bias=False))

    return {"compiled": asked("forward_native"), "eager": asked(f"forward_{platform}")}


def _lora_patch() -> Patch:
    name = "mineru-vl-utils: tokenizer without LoRA"
    folder = package_folder("mineru_vl_utils")
    if folder is None:
        return Patch(name, False, False, "mineru-vl-utils is not installed")
    file = folder / mineru.ASYNC_CLIENT_FILE
    unguarded = file.is_file() and mineru.UNGUARDED in file.read_text(encoding="utf-8")
    why = f"{_version('mineru-vl-utils')} " + (
        "asks for get_lora_tokenizer, which vLLM has dropped" if unguarded else "copes without get_lora_tokenizer"
    )
    hinder = _why_off()
    return Patch(name, unguarded, not hinder, f"{why}; {hinder}" if hinder else why)


def _doclayout_patch() -> Patch:
    name = "DocLayout-YOLO: dilated convolutions"
    if package_folder("doclayout_yolo") is None:
        return Patch(name, False, False, "doclayout-yolo is not installed")
    hip = _on_rocm()
    if hip is None:
        return Patch(name, None, False, "torch is not installed")
    why = "ROCm: MIOpen has no fast kernel for them" if hip else "not ROCm: the library's own kernels are used"
    hinder = _why_off()
    return Patch(name, hip, hip and not hinder, f"{why}; {hinder}" if hinder else why)


def _pp_doclayout() -> Patch:
    name = "MinerU: PP-DocLayoutV2"
    folder = package_folder("mineru")
    if folder is None:
        return Patch(name, False, False, "MinerU is not installed")
    if any(folder.glob("model/layout/pp_doclayout*.py")):
        return Patch(name, False, False, "found, and left alone: it has no dilated convolution")
    return Patch(name, False, False, "this MinerU has another layout model")


def _on_rocm() -> bool | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch.version.hip is not None


def layout_kind(model: Any) -> str:
    """What a layout model is, by its modules' class names.

    Args:
        model: a ``torch.nn.Module``.

    Returns:
        ``doclayout-yolo`` (has dilated blocks, to be patched), ``pp-doclayout`` (to be left alone) or ``other``.
    """
    names = {type(part).__name__ for part in model.modules()}
    if names & {"DilatedBlock", "FastDilatedBlock"}:
        return "doclayout-yolo"
    return "pp-doclayout" if any("PPDocLayout" in name for name in names) else "other"


def _patch_yolo(module: ModuleType) -> None:
    patch_yolo(module.YOLOv10)


def patch_yolo(cls: type) -> None:
    """Wrap the ``YOLOv10`` loader, so that a model with dilated blocks has ours once loaded; again changes nothing.

    On ROCm, or with ``PDFQUARRY_PATCHES=force``. Other models, and images on the CPU, run as before.
    """
    if _WRAPPED in vars(cls):
        return
    own = cls.__init__  # type: ignore[misc]

    @functools.wraps(own)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        own(self, *args, **kwargs)
        if (_on_rocm() or mode() == "force") and hasattr(self.model, "modules"):
            patch_loaded(self.model)

    setattr(cls, _WRAPPED, own)
    cls.__init__ = init  # type: ignore[misc]


def patch_loaded(model: Any) -> int:
    """Replace the dilated blocks of a loaded model, if it is DocLayout-YOLO's.

    Args:
        model: a ``torch.nn.Module``.

    Returns:
        How many blocks are ours now; 0 for any other model.
    """
    if layout_kind(model) != "doclayout-yolo":
        return 0
    from pdfquarry_kernels.doclayout import FastDilatedBlock, patch_doclayout

    replaced = patch_doclayout(model)
    for part in model.modules():
        if isinstance(part, FastDilatedBlock) and not part._forward_pre_hooks:
            part.register_forward_pre_hook(_native_on_cpu)
    return replaced


def _native_on_cpu(block: Any, args: tuple[Any, ...]) -> None:
    """Triton has no kernels for the CPU; a model may be moved there at any time."""
    block.implementation = "auto" if args[0].device.type == "cuda" else "native"
