"""A page through the vision-language model: its regions, then what is in each, by mineru-vl-utils' client.

Every answer is looked at. One that is wrong is asked for again with other sampling, and goes back marked when that
does not help: the job then takes the text layer or OCR for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from typing import Any

from pdfquarry.engine.troubles import Trouble, find

# Sampling of the second and third try. MinerU's own is greedy, so the same again would give the same; these stay
# greedy, so that a page has one answer whenever it is read, and make repetition dearer.
RETRIES: tuple[dict[str, Any], ...] = (
    {"repetition_penalty": 1.05, "no_repeat_ngram_size": 35},
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 12, "presence_penalty": 0.0, "frequency_penalty": 0.0},
)
# Tokens of the longest prompt: MinerU2.5's image processor gives 2048 at most, and words.
_PROMPT = 2304
# Requests that an engine refuses before it has answered any: then it is the engine, and not the pages.
_MOST_REFUSED = 12


class EngineDown(Exception):
    """The engine can't answer any more; nothing is wrong with the page."""


@dataclass(slots=True)
class Usage:
    """What one request cost: tokens of prompt and answer, and why it ended."""

    tokens_in: int = 0
    tokens_out: int = 0
    finish: str = ""


# Where a request leaves its usage; a context has one, and the tasks and threads of a request inherit it.
usage: ContextVar[list[Usage]] = ContextVar("usage")


@dataclass(slots=True)
class Answer:
    """The answer to a request, with all its tries."""

    step: str
    kind: str
    text: str = ""
    trouble: Trouble | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    tries: int = 0
    finish: str = ""


class VlmPages:
    """Reads pages with a client of mineru-vl-utils.

    Args:
        client: a MinerUClient whose requests leave their ``usage``.
        most_tokens: tokens of one answer at most.
        context: tokens of prompt and answer that the model takes, or 0; servers refuse to be asked for more.
        down: returns whether the engine is dead, asked after an error.
        at_once: requests at a time; 0 leaves that to the engine.
    """

    def __init__(self, client: Any, most_tokens: int, context: int, down: Callable[[], bool], at_once: int = 0) -> None:
        self._client, self._down = client, down
        self._most_tokens = min(most_tokens, max(context - _PROMPT, context // 2)) if context else most_tokens
        self._gate = asyncio.Semaphore(at_once or 100_000)
        self.counts = {"requests": 0, "tokens_in": 0, "tokens_out": 0}
        self._refused = 0

    async def read(self, image: Any, regions: list[dict[str, Any]] | None) -> dict[str, Any]:
        """Return a page's blocks, in reading order, and how they were got.

        Args:
            image: a PIL image of the page, RGB.
            regions: what a detector found (type, bbox in 0..1, angle); None asks the model.

        Returns:
            ``blocks`` (type, bbox, angle, content, and ``trouble`` where the answer can't be used), ``trouble`` of the
            layout or None, ``requests`` with their tokens, and ``seconds`` of both steps.

        Raises EngineDown.
        """
        helper, executor = self._client.helper, self._client.executor
        started = time.perf_counter()
        answers: list[Answer] = []
        if regions is None:
            prompt = self._client.prompts["[layout]"]
            picture = await helper.aio_prepare_for_layout(executor, image)
            answers.append(await self._ask("layout", "page", picture, prompt, self._client.sampling_params["[layout]"]))
            blocks = await helper.aio_parse_layout_output(executor, answers[0].text)
            if not blocks and not answers[0].trouble:
                answers[0].trouble = Trouble.NO_REGIONS
        else:
            from mineru_vl_utils.structs import ContentBlock

            # By name: the order of its arguments has changed between versions.
            blocks = [ContentBlock(type=one["type"], bbox=one["bbox"], angle=one["angle"]) for one in regions]
        between = time.perf_counter()
        prepared = await helper.aio_prepare_for_extract(executor, image, blocks, None, None)
        asked = list(zip(*prepared, strict=True))
        requests = [self._ask("content", blocks[index].type, *request) for *request, index in asked]
        found = await asyncio.gather(*requests)
        for (*_, index), answer in zip(asked, found, strict=True):
            blocks[index].content = answer.text
            if answer.trouble:
                blocks[index]["trouble"] = str(answer.trouble)
        answers += found
        blocks = await helper.aio_post_process(executor, blocks)
        ended = time.perf_counter()
        return {
            "blocks": [dict(block) for block in blocks],
            "trouble": answers[0].trouble if regions is None else None if regions else Trouble.NO_REGIONS,
            "requests": [{key: value for key, value in asdict(one).items() if key != "text"} for one in answers],
            "seconds": {"layout": between - started, "content": ended - between},
        }

    async def _ask(self, step: str, kind: str, picture: Any, prompt: str, params: Any) -> Answer:
        answer = Answer(step, kind)
        for change in ({}, *RETRIES):
            sampling = replace(params, max_new_tokens=self._most_tokens, **change)
            spent: list[Usage] = []
            usage.set(spent)
            try:
                async with self._gate:
                    answer.text = await self._client.client.aio_predict(picture, prompt, sampling)
            except EngineDown:
                raise
            except Exception as error:
                if self._down():
                    raise EngineDown(f"{type(error).__name__}: {error}") from error
                print(f"a request was refused: {type(error).__name__}: {error}", flush=True)
                answer.text, answer.finish, answer.trouble = "", "error", Trouble.REJECTED
                self._refused += 1
                if self._refused >= _MOST_REFUSED:
                    raise EngineDown(f"it refuses every request: {type(error).__name__}: {error}") from error
            else:
                self._refused = -1_000_000_000  # it has answered; a page that is refused is to blame itself
                answer.finish = spent[-1].finish if spent else ""
                answer.trouble = find(answer.text, answer.finish, step == "layout")
            answer.tries += 1
            answer.tokens_in += sum(one.tokens_in for one in spent)
            answer.tokens_out += sum(one.tokens_out for one in spent)
            self.counts["requests"] += 1
            self.counts["tokens_in"] += sum(one.tokens_in for one in spent)
            self.counts["tokens_out"] += sum(one.tokens_out for one in spent)
            if not answer.trouble:
                break
        return answer
