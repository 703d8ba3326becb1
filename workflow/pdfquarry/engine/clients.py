"""The ways to a model: vLLM in this process, servers over HTTP, or transformers; each as a client of mineru-vl-utils.

A client is made to leave what each request cost in ``pages.usage``; the library tells it to nobody.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from pdfquarry.engine.pages import Usage, usage
from pdfquarry.engine.servers import Servers


@dataclass
class Way:
    """A client and what is known of it.

    Args:
        client: a MinerUClient.
        context: tokens of prompt and answer together that the model takes; 0 when unknown.
        down: whether the engine is dead.
        steps: how often the engine has moved, as far as it tells; a hung engine stands still.
        at_once: requests at a time; 0 leaves that to the engine.
        state: what goes into the receipt.
    """

    client: Any
    context: int
    down: Callable[[], bool]
    steps: Callable[[], int]
    at_once: int = 0
    state: dict[str, Any] = field(default_factory=dict)


async def open_way(
    kind: str, model: str, arguments: dict[str, Any], known: dict[str, Any], servers: list[str], patience: float
) -> Way:
    """Load the model, or find the servers.

    Args:
        kind: vllm, http or transformers.
        model: a folder, or for http the model's name there; empty takes the only one.
        arguments: of vLLM's engine, from the user; an unknown one is an error.
        known: arguments known to help on this card; those that this vLLM doesn't have are left out.
        servers: URLs, for http.
        patience: seconds to wait for servers that don't answer.

    Raises ImportError, ValueError, EngineDown, or whatever the engine raises when it can't start.
    """
    if kind == "vllm":
        return _vllm(model, arguments, known)
    return await _http(model, servers, patience) if kind == "http" else _transformers(model)


def _options() -> dict[str, Any]:
    # Threads resize and crop beside the engine; Pillow leaves Python's lock for that.
    return {"executor": ThreadPoolExecutor(min(16, os.cpu_count() or 1)), "use_tqdm": False}


def _vllm(model: str, arguments: dict[str, Any], known: dict[str, Any]) -> Way:
    import torch
    from mineru_vl_utils import MinerUClient, MinerULogitsProcessor
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import StatLoggerBase

    steps = 0

    class Steps(StatLoggerBase):  # type: ignore[misc]
        """Counts the engine's steps."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def record(self, *_: Any, **__: Any) -> None:
            nonlocal steps
            steps += 1

        def log_engine_initialized(self) -> None:
            pass

    names = {one.name for one in dataclasses.fields(AsyncEngineArgs)}
    unknown = sorted(set(arguments) - names)
    if unknown:
        raise ValueError(f"vlm.arguments: this vLLM has no {', '.join(unknown)}")
    # Pictures are prepared in so many threads, each with its share of the cores. vLLM allows that without its cache of
    # pictures only; a corpus has each once.
    threads = max(1, min(8, (os.cpu_count() or 1) // 2))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // (2 * threads)))
    ours = {"renderer_num_workers": threads, "mm_processor_cache_gb": 0} if "renderer_num_workers" in names else {}
    chosen = {"limit_mm_per_prompt": {"image": 1, "video": 0}} | ours
    chosen |= {name: value for name, value in known.items() if name in names} | arguments
    # An engine without this processor ignores no_repeat_ngram_size silently, and loops.
    # The sizes of batches that vLLM chooses depend on who it thinks is asking: an AsyncLLM that doesn't say so gets
    # 2048 tokens, one page at a time; LLM.generate gets what suits the card.
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(model=model, logits_processors=[MinerULogitsProcessor], **chosen),
        usage_context=UsageContext.LLM_CLASS,
        stat_loggers=[Steps],
    )
    client = MinerUClient("vllm-async-engine", vllm_async_llm=llm, **_options())
    inner = client.client
    own = inner.get_output_content

    @functools.wraps(own)
    def content(output: Any) -> str:
        first = output.outputs[0]
        spent = Usage(len(output.prompt_token_ids or ()), len(first.token_ids), str(first.finish_reason))
        usage.get().append(spent)
        return str(own(output))

    inner.get_output_content = content
    context = int(llm.model_config.max_model_len)
    return Way(client, context, lambda: bool(llm.errored), lambda: steps, state={"arguments": chosen})


async def _http(model: str, urls: list[str], patience: float) -> Way:
    from mineru_vl_utils import MinerUClient
    from mineru_vl_utils.vlm_client.http_client import HttpVlmClient

    def connect(url: str) -> Any:
        inner = HttpVlmClient(model or None, url, allow_truncated_content=True, max_retries=0, http_timeout=3600)
        own = inner.get_response_content

        @functools.wraps(own)
        def content(data: dict[str, Any]) -> str:
            cost, choices = data.get("usage") or {}, data.get("choices") or [{}]
            spent = Usage(cost.get("prompt_tokens") or 0, cost.get("completion_tokens") or 0)
            spent.finish = str(choices[0].get("finish_reason"))
            usage.get().append(spent)
            return str(own(data))

        inner.get_response_content = content
        return inner

    servers = Servers(urls, connect, patience)
    first = await servers.any_client()
    models = getattr(first, "models_url", f"{first.server_url}/v1/models")  # which 1.x doesn't have
    listed = (await (await first._aio_client()).get(models)).json()["data"]
    context = next((one.get("max_model_len") or 0 for one in listed if one["id"] == first.model_name), 0)
    client = MinerUClient(
        "http-client", model_name="any", server_url=urls[0], skip_model_name_checking=True, **_options()
    )
    client.client = servers
    return Way(client, context, lambda: False, lambda: servers.answered, state={"servers": urls})


def _transformers(model: str) -> Way:
    from mineru_vl_utils import MinerUClient

    client = MinerUClient("transformers", model_path=model, **_options())
    network = client.client.model
    own = network.generate

    @functools.wraps(own)
    def generate(**inputs: Any) -> Any:
        outputs = own(**inputs)
        before = inputs["input_ids"].shape[1]
        most = inputs.get("max_new_tokens") or 0
        answered = outputs.shape[1] - before
        usage.get().append(Usage(before, answered, "length" if most and answered >= most else "stop"))
        return outputs

    network.generate = generate
    # The model holds one batch at a time, and it is for debugging: one request after the other.
    return Way(client, int(client.client.model_max_length or 0), lambda: False, lambda: 0, at_once=1)
