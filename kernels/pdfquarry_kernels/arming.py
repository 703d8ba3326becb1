"""When a patch is applied: the switch, and a hook that calls a patch once the module it is for has been imported.

A patch waits for its module instead of importing it: loading vLLM's model files in every process costs seconds and may
touch the GPU too early, and a program that never uses them should not notice that there is a patch.
"""

from __future__ import annotations

import importlib.abc
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Literal

# "0" (also off, no, false): no patch at all. "force": also where it isn't needed, for tests. Else: where needed.
PATCHES_ENV = "PDFQUARRY_PATCHES"

Mode = Literal["off", "auto", "force"]
Callback = Callable[[ModuleType], None]

_log = logging.getLogger(__name__)
_waiting: dict[str, list[Callback]] = {}
_errors: list[str] = []


def mode() -> Mode:
    """What the environment variable ``PDFQUARRY_PATCHES`` says now."""
    value = os.environ.get(PATCHES_ENV, "").strip().lower()
    if value in ("0", "off", "no", "false"):
        return "off"
    return "force" if value == "force" else "auto"


def errors() -> tuple[str, ...]:
    """What went wrong in patches in this process, one line each; an error never reaches the importing program."""
    return tuple(_errors)


def armed() -> tuple[str, ...]:
    """The modules that a patch waits for, or has met."""
    return tuple(sorted(_waiting))


def when_imported(name: str, callback: Callback) -> None:
    """Call ``callback(module)`` after each import of the module, and now if it has been imported.

    Args:
        name: full name of the module; it need not exist.
        callback: module level function; the same one for the same name is taken once. What it raises is logged and
            kept in ``errors``.
    """
    callbacks = _waiting.setdefault(name, [])
    if callback in callbacks:
        return
    callbacks.append(callback)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    module = sys.modules.get(name)
    # A module that is being imported just now is met at its end, if this finder saw its beginning.
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _call(callback, module)


def _call(callback: Callback, module: ModuleType) -> None:
    try:
        callback(module)
    except Exception as error:  # a patch that fails leaves the program as it was, and says so
        _errors.append(f"{module.__name__}: {type(error).__name__}: {error}")
        _log.warning("PDF Quarry could not patch %s: %s", module.__name__, error)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: has the others find, and notes the end of an import that is waited for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if finder is self or find is None else find(fullname, path, target)
            if spec is not None:
                _notify_after(spec)
                return spec
        return None


def _notify_after(spec: ModuleSpec) -> None:
    loader, name = spec.loader, spec.name
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: ModuleType) -> None:
        execute(module)
        if module.__name__ == name:  # a loader may serve several modules
            for callback in _waiting[name]:
                _call(callback, module)

    # On the loader object, so that its type stays what tools expect.
    loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
