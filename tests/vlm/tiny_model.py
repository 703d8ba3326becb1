"""The tiny Qwen2-VL: its tokenizer with MinerU's tokens, and its untrained weights."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"]
SPECIAL += ["<|image_pad|>", "<|video_pad|>"]
MINERU = ["<|box_start|>", "<|box_end|>", "<|ref_start|>", "<|ref_end|>", "<|txt_contd_tgt|>"]
MINERU += [f"<|rotate_{side}|>" for side in ("up", "right", "down", "left")]
MINERU += ["<nl>", "<fcel>", "<ecel>", "<lcel>", "<ucel>", "<xcel>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY, LENGTH = 320, 4096


def make_tokenizer() -> Any:
    """A byte-level tokenizer without merges, with Qwen's and MinerU's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL + MINERU)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[token for token in SPECIAL[1:] + MINERU if token != "<|im_end|>"],
        chat_template=TEMPLATE,
        padding_side="left",
        model_max_length=LENGTH,
    )


def make_model(tokenizer: Any) -> Any:
    """The untrained model, in float32."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": LENGTH,
        "tie_word_embeddings": True,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        # A small theta, so that the width's share of the rotary dimensions turns at all within a few tokens.
        "rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12], "rope_theta": 200.0},
    }
    vision = {"depth": 1, "embed_dim": 64, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
    config = Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    model = Qwen2VLForConditionalGeneration(config).float()
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and "embed_tokens" not in name:
            # The usual start is meant for wide models; here it hardly lets the image through.
            torch.nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
        if "patch_embed" in name:  # blind to plain paper, whose white is far from zero
            weight.data -= weight.data.mean(dim=(1, 2, 3, 4), keepdim=True)
    model.generation_config.eos_token_id = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    return model
