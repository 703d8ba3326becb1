"""mineru-vl-utils: the tokenizer fallback of old releases, and the pairs of versions that go wrong silently."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pdfquarry_kernels.arming import mode, when_imported

ASYNC_CLIENT = "mineru_vl_utils.vlm_client.vllm_async_engine_client"
ASYNC_CLIENT_FILE = "vlm_client/vllm_async_engine_client.py"
# The statement that fails where vLLM's tokenizer has no such method (vLLM >= 0.11); later releases ask first.
UNGUARDED = "self.tokenizer = vllm_async_llm.tokenizer.get_lora_tokenizer()"
V2_RUNNER_ENV = "VLLM_USE_V2_MODEL_RUNNER"

_WRAPPED = "_pdfquarry_original"


@dataclass(frozen=True)
class Problem:
    """A pair of versions, or a way to build an engine, that does not work.

    Attributes:
        what: what would happen.
        remedy: what to do, in one line.
        fatal: whether results would be wrong or nothing would run.
    """

    what: str
    remedy: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


def arm() -> None:
    """Give the async client its tokenizer fallback when it is imported; may be called again."""
    if mode() != "off":
        when_imported(ASYNC_CLIENT, _patch_module)


def _patch_module(module: ModuleType) -> None:
    patch_client(module.VllmAsyncEngineVlmClient)


def patch_client(cls: type) -> None:
    """Let the client's ``__init__(self, vllm_async_llm, ...)`` find ``get_lora_tokenizer`` on any tokenizer.

    Releases that ask for the method first get the same tokenizer as without this.
    """
    if _WRAPPED in vars(cls):
        return
    own = cls.__init__  # type: ignore[misc]

    @functools.wraps(own)
    def init(self: Any, vllm_async_llm: Any = None, *args: Any, **kwargs: Any) -> None:
        with _lora_tokenizer(getattr(vllm_async_llm, "tokenizer", None)):
            own(self, vllm_async_llm, *args, **kwargs)

    setattr(cls, _WRAPPED, own)
    cls.__init__ = init  # type: ignore[misc]


def is_patched(cls: type) -> bool:
    """Whether ``patch_client`` has wrapped this class."""
    return _WRAPPED in vars(cls)


@contextmanager
def _lora_tokenizer(tokenizer: Any) -> Iterator[None]:
    """The tokenizer answers for itself inside; outside it is as it was, since vLLM copies and pickles it."""
    if tokenizer is None or hasattr(tokenizer, "get_lora_tokenizer"):
        yield
        return
    tokenizer.get_lora_tokenizer = lambda *_args, **_kwargs: tokenizer
    try:
        yield
    finally:
        del tokenizer.get_lora_tokenizer


def version_problems(
    vllm: str | None,
    mineru_vl_utils: str | None,
    engine: str,
    environ: Mapping[str, str] | None = None,
) -> list[Problem]:
    """What is known to go wrong with these versions and this kind of engine.

    Args:
        vllm: installed version, or None.
        mineru_vl_utils: installed version, or None.
        engine: a backend of MinerUClient: ``vllm-engine`` (sync), ``vllm-async-engine``, ``http-client``, ...
            A server that this environment starts for the http-client is an async engine: ask for that.
        environ: the environment that the engine will start in; this process's by default.

    Returns:
        Problems, the worst first; empty if none is known.

    Raises:
        packaging.version.InvalidVersion: a string that is no version.
    """
    from packaging.version import Version

    environ = os.environ if environ is None else environ
    if mineru_vl_utils is None:
        return [Problem("mineru-vl-utils is not installed", "pip install mineru-vl-utils")]
    in_process = engine in ("vllm-engine", "vllm-async-engine")
    if vllm is None:
        return [Problem(f"{engine} needs vLLM, which is not installed", "install vLLM")] if in_process else []
    if not in_process:
        return []
    server, client = Version(vllm).release, Version(mineru_vl_utils).release
    problems = []
    # vLLM's LLM has a `renderer` from 0.17 on; these clients render with it, and generate() then drops the image.
    if engine == "vllm-engine" and (1, 0, 3) <= client < (2, 0, 0) and server >= (0, 17):
        problems.append(
            Problem(
                f"mineru-vl-utils {mineru_vl_utils} loses the image in the sync engine of vLLM {vllm}",
                "install mineru-vl-utils>=2.0.0, or use the vllm-async-engine",
            )
        )
    if server >= (0, 31) and environ.get(V2_RUNNER_ENV) != "0":
        problems.append(
            Problem(
                f"vLLM {vllm} uses its V2 model runner, which refuses MinerULogitsProcessor",
                f"set {V2_RUNNER_ENV}=0 before vLLM is imported",
            )
        )
    if engine == "vllm-async-engine" and client < (0, 1, 14) and server >= (0, 11) and mode() == "off":
        problems.append(
            Problem(
                f"mineru-vl-utils {mineru_vl_utils} calls get_lora_tokenizer, which vLLM {vllm} does not have",
                "install mineru-vl-utils>=0.1.14, or leave the patches switched on",
            )
        )
    return problems


def processor_problems(logits_processors: Iterable[Any] | None) -> list[Problem]:
    """The problem of an engine built without MinerULogitsProcessor: ``no_repeat_ngram_size`` is ignored silently.

    Args:
        logits_processors: what the engine gets as ``logits_processors``: classes, or ``module:class`` names; None for
            an engine that MinerUClient would build from a ``model_path``.
    """
    # MinerULogitsProcessor is the public name of the second.
    known = ("MinerULogitsProcessor", "VllmV1NoRepeatNGramLogitsProcessor")
    names = (p if isinstance(p, str) else getattr(p, "__name__", "") for p in logits_processors or ())
    if any(name.replace(":", ".").rpartition(".")[2] in known for name in names):
        return []
    return [
        Problem(
            "an engine without MinerULogitsProcessor repeats itself",
            "build the engine with logits_processors=[MinerULogitsProcessor] and pass it to MinerUClient",
        )
    ]
