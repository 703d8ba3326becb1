"""mineru-vl-utils: the tokenizer fallback in real releases, and the pairs of versions that are refused."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from fetched import installed
from pdfquarry.engine.regions import ABANDON, CLASSES
from pdfquarry_kernels import arming, guide_patch, mineru

UNGUARDED = ("0.1.11", "0.1.13")
RELEASES = (*UNGUARDED, "0.1.14", "1.2.1", "2.0.7")
NEEDED = ("pillow", "httpx", "aiofiles", "loguru", "tqdm")


class AsyncLLM:
    """As much of vLLM's as the client's constructor looks at."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.model_config = SimpleNamespace(max_model_len=4096)


class Tokenizer:
    """A plain tokenizer, as vLLM >= 0.11 hands out."""


class TokenizerGroup:
    """What older vLLM hands out."""

    def __init__(self) -> None:
        self.inside = Tokenizer()

    def get_lora_tokenizer(self) -> Tokenizer:
        return self.inside


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A real mineru-vl-utils, importable, with stand-ins for the vLLM it imports."""
    monkeypatch.syspath_prepend(str(installed(*NEEDED, deps=True)))
    monkeypatch.syspath_prepend(str(installed(f"mineru-vl-utils=={request.param}")))
    importlib.invalidate_caches()
    for name, contents in {
        "vllm": {"SamplingParams": object, "LLM": object},
        "vllm.sampling_params": {"RequestOutputKind": object},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.async_llm": {"AsyncLLM": AsyncLLM},
    }.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    return str(request.param)


def client(tokenizer: Any) -> Any:
    return importlib.import_module(mineru.ASYNC_CLIENT).VllmAsyncEngineVlmClient(AsyncLLM(tokenizer))


@pytest.mark.slow
def test_without_the_patch_old_releases_ask_for_a_method_that_is_gone(release: str) -> None:
    if release in UNGUARDED:
        with pytest.raises(AttributeError, match="get_lora_tokenizer"):
            client(Tokenizer())
    else:
        client(Tokenizer())


@pytest.mark.slow
def test_with_the_patch_every_release_takes_both_kinds_of_tokenizer(release: str) -> None:
    mineru.arm()
    plain, group = Tokenizer(), TokenizerGroup()
    assert client(plain).tokenizer is plain
    assert client(group).tokenizer is group.inside
    assert vars(plain) == {}, "the tokenizer is left as it was"
    assert arming.errors() == ()
    cls = importlib.import_module(mineru.ASYNC_CLIENT).VllmAsyncEngineVlmClient
    before = cls.__init__
    mineru.patch_client(cls)
    assert cls.__init__ is before and mineru.is_patched(cls)


@pytest.mark.slow
def test_the_client_is_still_checked_and_its_arguments_still_arrive(release: str) -> None:
    mineru.arm()
    cls = importlib.import_module(mineru.ASYNC_CLIENT).VllmAsyncEngineVlmClient
    with pytest.raises(ValueError, match="None"):
        cls(None)
    with pytest.raises(ValueError, match="instance"):
        cls(SimpleNamespace(tokenizer=Tokenizer()))
    assert cls(vllm_async_llm=AsyncLLM(Tokenizer()), max_concurrency=7).max_concurrency == 7


@pytest.mark.slow
def test_the_guides_edit_is_for_the_releases_that_need_it(release: str) -> None:
    file = installed(f"mineru-vl-utils=={release}") / "mineru_vl_utils" / mineru.ASYNC_CLIENT_FILE
    edited = guide_patch.edit_client(file.read_text())
    assert (edited is not None) == (release in UNGUARDED)
    if edited is not None:
        compile(edited, str(file), "exec")
        assert guide_patch.edit_client(edited) is None, "an edit is not made twice"


@pytest.mark.parametrize(
    ("vllm", "client_version", "engine", "environ", "remedy"),
    [
        ("0.20.2", "1.0.3", "vllm-engine", {}, "mineru-vl-utils>=2.0.0"),
        ("0.17.0", "1.2.1", "vllm-engine", {}, "mineru-vl-utils>=2.0.0"),
        ("0.16.0", "1.2.1", "vllm-engine", {}, None),
        ("0.20.2", "1.2.1", "vllm-async-engine", {}, None),
        ("0.20.2", "2.0.0", "vllm-engine", {}, None),
        ("0.11.0", "1.0.2", "vllm-engine", {}, None),
        ("0.31.0", "2.0.7", "vllm-engine", {}, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ("0.33.0+rocm723", "2.0.7", "vllm-async-engine", {"VLLM_USE_V2_MODEL_RUNNER": "1"}, "RUNNER=0"),
        ("0.33.0", "2.0.7", "vllm-engine", {"VLLM_USE_V2_MODEL_RUNNER": "0"}, None),
        ("0.30.0", "2.0.7", "vllm-engine", {}, None),
        ("0.11.0", "0.1.13", "vllm-async-engine", {}, None),
        ("0.10.2", "0.1.11", "vllm-engine", {}, None),
        (None, "2.0.7", "vllm-engine", {}, "install vLLM"),
        (None, "2.0.7", "http-client", {}, None),
        ("0.20.0", None, "http-client", {}, "pip install mineru-vl-utils"),
    ],
)
def test_pairs_that_go_wrong_are_named_with_a_remedy_and_others_are_not(
    vllm: str | None, client_version: str | None, engine: str, environ: dict[str, str], remedy: str | None
) -> None:
    found = mineru.version_problems(vllm, client_version, engine, environ)
    assert len(found) == (remedy is not None)
    if remedy:
        assert remedy in found[0].remedy and "\n" not in str(found[0])


def test_an_old_client_with_the_patches_switched_off_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(arming.PATCHES_ENV, "0")
    (problem,) = mineru.version_problems("0.11.0", "0.1.13", "vllm-async-engine", {})
    assert "get_lora_tokenizer" in problem.what


def test_an_engine_without_the_logits_processor_is_refused() -> None:
    processor = type("VllmV1NoRepeatNGramLogitsProcessor", (), {})
    assert mineru.processor_problems([processor]) == []
    assert mineru.processor_problems(["mineru_vl_utils:MinerULogitsProcessor"]) == []
    assert mineru.processor_problems(["mineru_vl_utils.MinerULogitsProcessor"]) == []
    for without in (None, [], [object], ["other:Processor"]):
        (problem,) = mineru.processor_problems(without)
        assert "MinerULogitsProcessor" in problem.remedy


def test_the_fallback_is_not_armed_when_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(arming.PATCHES_ENV, "0")
    mineru.arm()
    assert arming.armed() == ()


@pytest.mark.slow
def test_ready_regions_of_every_type_are_read_but_for_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed(*NEEDED, deps=True)))
    monkeypatch.syspath_prepend(str(installed("mineru-vl-utils==2.0.7")))
    importlib.invalidate_caches()
    client = importlib.import_module("mineru_vl_utils.mineru_client")
    aside = {"header", "footer", "page_number", "page_footnote", "aside_text"}
    kinds = sorted({*CLASSES.values(), *aside} - {ABANDON})
    page = [
        {"type": kind, "bbox": [0.0, row / 20, 1.0, (row + 1) / 20], "angle": 0, "score": 0.5}
        for row, kind in enumerate(kinds)
    ]
    blocks = client.MinerUClient._coerce_external_layout_blocks(page)
    switches = ("simple_post_process", "handle_equation_block", "abandon_list", "abandon_paratext")
    helper = client.MinerUClientHelper(
        *("transformers", client.DEFAULT_PROMPTS, client.DEFAULT_SAMPLING_PARAMS, (1036, 1036), 28, 50),
        **dict.fromkeys((*switches, "image_analysis", "debug"), False),
    )
    crops, prompts, _, indices = helper.prepare_for_extract(Image.new("RGB", (800, 1000)), blocks)
    asked = {blocks[index].type: prompt.strip() for index, prompt in zip(indices, prompts, strict=True)}
    assert len(crops) == len(asked) == len(kinds) - 1 and "image" not in asked
    assert asked.pop("table") == "Table Recognition:" and asked.pop("equation") == "Formula Recognition:"
    assert set(asked.values()) == {"Text Recognition:"}
