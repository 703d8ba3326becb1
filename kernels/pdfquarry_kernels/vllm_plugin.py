"""The vLLM plugin: patch embeddings that would run as a Conv3d run through our dispatcher.

vLLM calls ``register`` (entry point ``vllm.general_plugins``) once in each of its processes, before a model is built.
It arms one hook per model file; when vLLM imports that file, the class's ``__init__`` and ``forward`` are wrapped.
After each ``__init__`` the release itself is asked which way its ``proj`` goes (``path_of``), and only if that is
Conv3d the forward is ours. ``.proj`` stays, with its 5-D weight, so checkpoints load as before.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pdfquarry_kernels import mineru
from pdfquarry_kernels.arming import PATCHES_ENV, armed, errors, mode, when_imported

CLASSES = {
    "vllm.model_executor.models.qwen2_vl": "Qwen2VisionPatchEmbed",
    "vllm.model_executor.models.qwen2_5_vl": "Qwen2_5_VisionPatchEmbed",
    "vllm.model_executor.models.qwen3_vl": "Qwen3_VisionPatchEmbed",
}
# A folder: every process in which the plugin is loaded keeps its ``Status`` there, as <process id>.json.
STATUS_ENV = "PDFQUARRY_PATCHES_STATUS"
# The process id of an engine process of ours: its children end with it.
ENGINE_ENV = "PDFQUARRY_ENGINE"

_ORIGINAL = "_pdfquarry_original"  # on a patched class: its own forward
_OURS = "_pdfquarry_ours"  # on a proj whose Conv3d we replace
_counts = {"convolving": 0, "left_alone": 0, "calls": 0}


@dataclass(frozen=True)
class Status:
    """What the plugin did in one process.

    Attributes:
        pid: the process.
        armed: whether ``register`` ran and was not switched off.
        classes: names of the vLLM classes whose forward is wrapped.
        convolving: models built whose patch embedding would be a Conv3d, and is ours.
        left_alone: models built that take another way, and are as vLLM made them.
        calls: forwards that ran ours (not counted while torch.compile traces).
        errors: one line each.
    """

    pid: int
    armed: bool
    classes: tuple[str, ...]
    convolving: int
    left_alone: int
    calls: int
    errors: tuple[str, ...]


def register() -> None:
    """Arm the patches in this process; called by vLLM. May be called again; never raises for what vLLM lacks."""
    _die_with_parent()
    if mode() == "off":
        return
    for module in CLASSES:
        when_imported(module, _patch_module)
    mineru.arm()  # so that `mineru -b vlm-vllm-async-engine` has it too
    _report()


def _die_with_parent() -> None:
    """Let the kernel end a process that an engine process of ours has started, once its parent is gone.

    vLLM's own children notice the death of their parent late or never, and go on holding the GPU's memory.
    """
    engine = os.environ.get(ENGINE_ENV, "")
    if engine and engine != str(os.getpid()) and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def status() -> Status:
    """What happened in this process so far."""
    classes = [
        name
        for module, name in CLASSES.items()
        if _ORIGINAL in vars(getattr(sys.modules.get(module), name, None) or object)
    ]
    return Status(os.getpid(), set(CLASSES) <= set(armed()), tuple(classes), errors=errors(), **_counts)


def active() -> bool:
    """Whether, in this process, a vLLM class is wrapped, or will be when vLLM imports it, and nothing went wrong."""
    return status().armed and not errors()


def read_status(folder: Path) -> list[Status]:
    """The status of each process that wrote one into the folder that ``PDFQUARRY_PATCHES_STATUS`` names."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [Status(**entry | {"classes": tuple(entry["classes"]), "errors": tuple(entry["errors"])}) for entry in found]


def verdict(processes: list[Status]) -> tuple[bool, str]:
    """What an engine's start should check and a receipt should say, from the status of the engine's processes.

    Args:
        processes: from ``read_status``, after the model has been built.

    Returns:
        Whether each model was decided on and nothing went wrong, and one line that says what was found.
    """
    problems = sorted({error for process in processes for error in process.errors})
    ours, theirs = (sum(getattr(p, name) for p in processes) for name in ("convolving", "left_alone"))
    if problems:
        return False, f"the patch failed: {'; '.join(problems)}"
    if not processes:
        return False, f"no process loaded the plugin: is it installed, and not switched off by {PATCHES_ENV}?"
    if ours + theirs == 0:
        return False, "the plugin is loaded, but no process built a model with a patch embedding that it knows"
    return True, f"patch embedding: ours in {ours}, vLLM's own linear path in {theirs} of {ours + theirs} models"


def path_of(proj: Any) -> str:
    """Which way a projection goes, by the release's own code: it is run up to its first convolution or product.

    Args:
        proj: a Conv3d-like module: ``torch.nn.Conv3d`` or vLLM's ``Conv3dLayer``, as configured.

    Returns:
        ``conv3d``, ``linear``, or ``other``. Nothing is computed and no kernel is launched.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Took(Exception):
        pass

    class FirstProduct(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if name in ("conv3d", "linear"):
                raise Took(name)
            return func(*args, **(kwargs or {}))

    x = torch.empty((1, proj.weight.shape[1], *proj.weight.shape[2:]), dtype=proj.weight.dtype, device="meta")
    try:
        with FirstProduct():
            proj.forward(x)
    except Took as took:
        return str(took)
    except Exception:  # an unknown form: not ours to touch
        return "other"
    return "other"


def is_patch_projection(proj: Any) -> bool:
    """Whether this is a convolution of whole patches that do not overlap: the one case that equals a product."""
    import torch

    if type(proj) is not torch.nn.Conv3d and type(proj).__name__ != "Conv3dLayer":
        return False
    kernel = tuple(proj.weight.shape[2:])
    return (
        proj.weight.ndim == 5
        and tuple(proj.stride) == kernel
        and tuple(proj.padding) == (0, 0, 0)
        and tuple(proj.dilation) == (1, 1, 1)
        and proj.groups == 1
        and kernel[1] == kernel[2]
    )


def patch_class(cls: type) -> None:
    """Wrap a patch-embedding class (``self.proj``, ``forward(x[L, C*T*P*P]) -> [L, E]``); again changes nothing.

    Args:
        cls: the class; instances made from now on are decided on, earlier ones keep their own forward.
    """
    if _ORIGINAL in vars(cls):
        return
    import torch

    embed = _embedding()
    own_init: Callable[..., None] = cls.__init__  # type: ignore[misc]
    own_forward: Callable[[Any, Any], Any] = cls.forward  # type: ignore[attr-defined]

    @functools.wraps(own_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        own_init(self, *args, **kwargs)
        proj = self.proj
        ours = is_patch_projection(proj) and (mode() == "force" or path_of(proj) == "conv3d")
        proj.__dict__[_OURS] = ours  # on proj: if somebody replaces that, the class's own forward is right again
        _counts["convolving" if ours else "left_alone"] += 1
        _report()

    @functools.wraps(own_forward)
    def forward(self: Any, x: Any) -> Any:
        # The kernels have no backward, so whoever wants gradients gets vLLM's own way.
        if not getattr(self.proj, _OURS, False) or torch.is_grad_enabled():
            return own_forward(self, x)
        if not torch.compiler.is_compiling():
            _count_call()
        return embed(x, self.proj.weight, self.proj.bias)

    setattr(cls, _ORIGINAL, own_forward)
    cls.__init__ = init  # type: ignore[misc]
    cls.forward = forward  # type: ignore[attr-defined]


def _patch_module(module: ModuleType) -> None:
    cls = getattr(module, CLASSES[module.__name__], None)
    if cls is not None:
        patch_class(cls)
        _report()


def _embedding() -> Callable[[Any, Any, Any], Any]:
    """``(x [L, K], weight [E, C, T, P, P], bias [E] or None) -> [L, E]`` through the dispatcher.

    On the CPU, and where triton is missing, torch's linear on the flattened weight: the same product.
    """
    import torch

    try:
        from pdfquarry_kernels.patch_embed import patch_embed
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "triton":
            raise
        return lambda x, weight, bias: torch.nn.functional.linear(x, weight.flatten(1), bias)
    return lambda x, weight, bias: patch_embed(x, weight, bias, "auto" if x.device.type == "cuda" else "linear")


def _count_call() -> None:
    _counts["calls"] += 1
    if _counts["calls"] == 1:
        _report()


def _report() -> None:
    """Write this process's status, if a folder is named; never an error of the engine's."""
    folder = os.environ.get(STATUS_ENV)
    if not folder:
        return
    try:
        target = Path(folder, f"{os.getpid()}.json")
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_suffix(".part")
        aside.write_text(json.dumps(asdict(status())))
        aside.replace(target)
    except OSError:
        pass
