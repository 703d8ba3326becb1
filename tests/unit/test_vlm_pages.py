"""A page goes through two steps; an answer that can't be used is asked for again, and marked when that is no help."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pdfquarry.engine import pages
from pdfquarry.engine.pages import RETRIES, EngineDown, Usage, VlmPages, usage

LAYOUT = "<|box_start|>100 100 900 200<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>"


class Block(dict):  # type: ignore[type-arg]
    """Like mineru-vl-utils' ContentBlock."""

    @property
    def type(self) -> str:
        return str(self["type"])

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


@dataclass
class Params:
    """Like mineru-vl-utils' SamplingParams."""

    max_new_tokens: int | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 100
    presence_penalty: float = 1.0
    frequency_penalty: float = 0.05


class Helper:
    """Like mineru-vl-utils' MinerUClientHelper, for one text region a page."""

    async def aio_prepare_for_layout(self, executor: Any, image: Any) -> Any:
        return image

    async def aio_parse_layout_output(self, executor: Any, text: str) -> list[Block]:
        return [Block(type="text", bbox=[0.1, 0.1, 0.9, 0.2], angle=0)] * text.count("<|box_start|>")

    async def aio_prepare_for_extract(self, executor: Any, image: Any, blocks: list[Block], *_: Any) -> Any:
        count = range(len(blocks))
        return [image] * len(blocks), ["\nText Recognition:"] * len(blocks), [Params()] * len(blocks), list(count)

    async def aio_post_process(self, executor: Any, blocks: list[Block]) -> list[Block]:
        return blocks


def reader(answer: Callable[[str, Params], str], down: bool = False, context: int = 0) -> VlmPages:
    async def predict(image: Any, prompt: str, params: Params) -> str:
        text = answer(prompt, params)
        finish = "length" if len(text) >= (params.max_new_tokens or 10**9) else "stop"
        usage.get().append(Usage(10, len(text), finish))
        return text

    client = SimpleNamespace(
        helper=Helper(),
        executor=None,
        prompts={"[layout]": "\nLayout Detection:"},
        sampling_params={"[layout]": Params()},
        client=SimpleNamespace(aio_predict=predict),
    )
    return VlmPages(client, 500, context, lambda: down)


def read(one: VlmPages, regions: Any = None) -> dict[str, Any]:
    return asyncio.run(one.read(object(), regions))


def test_a_good_page_takes_one_request_a_step() -> None:
    found = read(reader(lambda prompt, params: LAYOUT if "Layout" in prompt else "The quarry."))
    assert found["blocks"][0]["content"] == "The quarry." and found["trouble"] is None
    assert [(one["step"], one["tries"], one["finish"]) for one in found["requests"]] == [
        ("layout", 1, "stop"),
        ("content", 1, "stop"),
    ]
    assert found["requests"][0]["tokens_in"] == 10 and found["requests"][0]["tokens_out"] == len(LAYOUT)


def test_a_loop_is_asked_again_with_other_sampling_and_a_good_answer_is_taken() -> None:
    def answer(prompt: str, params: Params) -> str:
        if "Layout" in prompt:
            return LAYOUT
        return "The quarry." if params.repetition_penalty > 1 else "again " * 80

    found = read(reader(answer))
    assert found["blocks"][0]["content"] == "The quarry." and "trouble" not in found["blocks"][0]
    assert found["requests"][1]["tries"] == 2


def test_an_answer_that_stays_bad_is_marked_after_the_last_try() -> None:
    found = read(reader(lambda prompt, params: LAYOUT if "Layout" in prompt else "x" * 500))
    assert found["blocks"][0]["trouble"] in ("length", "loop")
    assert found["requests"][1]["tries"] == 1 + len(RETRIES)


@pytest.mark.parametrize("text", ["", "no regions here", "!" * 50])
def test_a_layout_without_regions_is_a_trouble_of_the_page(text: str) -> None:
    found = read(reader(lambda prompt, params: text))
    assert found["blocks"] == [] and found["trouble"]
    assert found["requests"][0]["tries"] == 1 + len(RETRIES)


def test_regions_that_are_given_take_no_layout_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mineru_vl_utils", ModuleType("mineru_vl_utils"))
    structs = SimpleNamespace(ContentBlock=Block)
    monkeypatch.setitem(sys.modules, "mineru_vl_utils.structs", structs)
    regions = [{"type": "text", "bbox": [0, 0, 1, 1], "angle": 0}]
    one = reader(lambda prompt, params: "The quarry.")
    found = read(one, regions)
    assert [request["step"] for request in found["requests"]] == ["content"]
    assert read(one, [])["trouble"] == "no_regions", "the page has ink"


def test_a_request_that_is_refused_costs_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(prompt: str, params: Params) -> str:
        if "Layout" in prompt:
            return LAYOUT * 2
        raise ValueError("aspect ratio")

    found = read(reader(answer))
    assert [block["trouble"] for block in found["blocks"]] == ["rejected", "rejected"]


def test_an_engine_that_refuses_everything_is_down_and_costs_no_page() -> None:
    def answer(prompt: str, params: Params) -> str:
        raise ValueError("max_tokens is too large")

    one = reader(answer)
    with pytest.raises(EngineDown, match="refuses every request"):
        for _ in range(pages._MOST_REFUSED):
            read(one)


def test_a_dead_engine_is_no_fault_of_the_page() -> None:
    def answer(prompt: str, params: Params) -> str:
        raise RuntimeError("EngineCore encountered an issue")

    with pytest.raises(EngineDown, match="EngineCore"):
        read(reader(answer, down=True))


def test_no_more_tokens_are_asked_for_than_the_model_has_room_for() -> None:
    asked: list[int | None] = []

    def answer(prompt: str, params: Params) -> str:
        asked.append(params.max_new_tokens)
        return LAYOUT if "Layout" in prompt else "The quarry."

    for context in (0, 100_000, 2600, 400):
        read(reader(answer, context=context))
    assert asked[::2] == [500, 500, 500, 200]
