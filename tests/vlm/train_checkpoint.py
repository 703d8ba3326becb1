"""Trains the tiny checkpoint: a Qwen2-VL of half a million parameters that knows the pages of pages.py by heart.

    python train_checkpoint.py PAGES CHECKPOINT [--seed 0] [--steps STEPS]

PAGES is the folder that ``pages.py`` writes. Runs on one CPU core in an environment with torch, transformers,
mineru-vl-utils and pypdfium2; images and prompts are prepared by mineru-vl-utils' own code. It stops as soon as every
token of every answer leads by MARGIN, and exits with 1 if three rounds of STEPS steps did not bring that about.
"""

from __future__ import annotations

import argparse
import io
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pypdfium2 as pdfium
import torch
from loguru import logger
from mineru_vl_utils.mineru_client import DEFAULT_PROMPTS, DEFAULT_SAMPLING_PARAMS, MinerUClientHelper
from mineru_vl_utils.vlm_client.base_client import DEFAULT_SYSTEM_PROMPT
from PIL import Image
from transformers import Qwen2VLImageProcessor

sys.path.insert(0, str(Path(__file__).parent))
from pages import DOCUMENTS, LOOP
from tiny_model import LENGTH, VOCABULARY, make_model, make_tokenizer

PIXELS = 28 * 28 * 100  # at most, in an image: the layout image of 1036x1036 becomes 280x280, 100 tokens
SHARPER = 4.0  # by how much the final norm is scaled at export: penalties of MinerU's sampling then flip no choice
MARGIN = 2.5  # by how much a right token's logit leads, before that
SIZES = [(200, 0), (150, 0), (200, 1), (200, -1), (144, 0)]  # dots an inch, and pixels more or less a side
BATCH = 12
RATES = (3e-3, 1.5e-3, 1.5e-3)  # one is enough here; another seed or processor may take a second round


@dataclass
class Sample:
    """One question and its answer: the image in several renderings, as the image processor gives it."""

    pixels: list[torch.Tensor]
    grids: list[tuple[int, int, int]]
    prompt: str
    answer: list[int]
    endless: bool


def render(document: Path, dpi: int, more: int) -> list[Image.Image]:
    """The pages as images; ``more`` pixels are added to each side by resizing."""
    images = []
    for page in pdfium.PdfDocument(document):
        image = page.render(scale=dpi / 72).to_pil().convert("RGB")
        images.append(image.resize((image.width + more, image.height + more)) if more else image)
    return images


def as_jpeg(image: Image.Image) -> Image.Image:
    """The image with the marks of a strong compression."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=60)
    return Image.open(buffer)


def make_samples(folder: Path, tokenizer: Any, processor: Any) -> list[Sample]:
    """All questions that the client asks about the pages, with the answers."""
    helper = MinerUClientHelper(
        "transformers", DEFAULT_PROMPTS, DEFAULT_SAMPLING_PARAMS, (1036, 1036), 28, 50, *[False] * 6
    )
    samples = []
    for name, pages in DOCUMENTS.items():
        renderings = [render(folder / f"{name}.pdf", dpi, more) for dpi, more in SIZES]
        renderings.append([as_jpeg(image) for image in renderings[0]])
        for number, page in enumerate(pages):
            questions: list[list[tuple[Any, str]]] = []
            for images in renderings:
                blocks = helper.parse_layout_output(page.answer())
                crops, prompts, _, _ = helper.prepare_for_extract(images[number], blocks)
                layout = helper.prepare_for_layout(images[number])
                questions.append([(layout, DEFAULT_PROMPTS["[layout]"]), *zip(crops, prompts, strict=True)])
            answers = [page.answer(), *(block.said() for block in page.blocks if block.said() is not None)]
            for asked, answer in zip(zip(*questions, strict=True), answers, strict=True):
                processed = [processor(image, return_tensors="pt") for image, _ in asked]
                messages = [
                    {"role": "system", "content": DEFAULT_SYSTEM_PROMPT},
                    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": asked[0][1]}]},
                ]
                ids = tokenizer.encode(answer, add_special_tokens=False)
                samples.append(
                    Sample(
                        [one["pixel_values"] for one in processed],
                        [tuple(one["image_grid_thw"][0].tolist()) for one in processed],
                        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True),
                        ids if answer == LOOP else [*ids, tokenizer.eos_token_id],
                        answer == LOOP,
                    )
                )
    return samples


def forward(model: Any, tokenizer: Any, batch: list[tuple[Sample, int]], rng: random.Random | None) -> Any:
    """Logits where an answer's token is due, those tokens, and which of them belong to the endless answer.

    With ``rng``, the pixels get noise, and the endless answer is put at a random distance with some letters wrong:
    it goes on whatever came before.
    """
    pad = tokenizer.pad_token_id
    image_id = model.config.image_token_id
    rows, starts = [], []
    for sample, which in batch:
        _, height, width = sample.grids[which]
        prompt = sample.prompt.replace("<|image_pad|>", "<|image_pad|>" * (height * width // 4))
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        answer = list(sample.answer)
        if rng and sample.endless:
            answer = [rng.randrange(VOCABULARY - 64) if rng.random() < 0.05 else token for token in answer]
        rows.append(ids + answer)
        starts.append(len(ids))
    longest = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    grids = torch.tensor([sample.grids[which] for sample, which in batch])
    pixels = torch.cat([sample.pixels[which] for sample, which in batch])
    positions, _ = model.model.get_rope_index(ids, (ids == image_id).int(), grids, attention_mask=mask)
    if rng:
        pixels = pixels + torch.randn_like(pixels) * 0.1
        for row, (sample, _) in enumerate(batch):
            if sample.endless:
                positions[:, row, starts[row] :] += rng.choice([0, rng.randrange(LENGTH)])
    logits = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, pixel_values=pixels, image_grid_thw=grids
    ).logits.float()
    due = [
        logits[row, start - 1 : start - 1 + len(sample.answer)]
        for row, (start, (sample, _)) in enumerate(zip(starts, batch, strict=True))
    ]
    endless = [torch.full((len(sample.answer),), sample.endless) for sample, _ in batch]
    return torch.cat(due), torch.cat([torch.tensor(sample.answer) for sample, _ in batch]), torch.cat(endless)


def leads(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """By how much each right token's logit is above the best other."""
    right = logits.gather(1, tokens[:, None])[:, 0]
    return right - logits.scatter(1, tokens[:, None], -math.inf).max(dim=1).values


@torch.no_grad()
def worst_lead(model: Any, tokenizer: Any, samples: list[Sample]) -> float:
    """The smallest lead over all renderings; positive: every answer comes out right, token by token."""
    worst = math.inf
    for which in range(len(samples[0].pixels)):
        for first in range(0, len(samples), BATCH):
            batch = [(sample, which) for sample in samples[first : first + BATCH]]
            logits, tokens, _ = forward(model, tokenizer, batch, None)
            worst = min(worst, float(leads(logits, tokens).min()))
    return worst


def train(model: Any, tokenizer: Any, samples: list[Sample], steps: int, rate: float, rng: random.Random) -> bool:
    """Train until every token leads by MARGIN; whether that came about before the rate had fallen to nothing."""
    samples = sorted(samples, key=lambda sample: len(sample.answer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 30) * (1 - step / steps))
    total = sum(len(sample.answer) ** 0.5 for sample in samples)
    began = time.monotonic()
    for step in range(steps):
        mean = 0.0
        for first in range(0, len(samples), BATCH):
            batch = [(sample, rng.randrange(len(sample.pixels))) for sample in samples[first : first + BATCH]]
            logits, tokens, endless = forward(model, tokenizer, batch, rng)
            lead = leads(logits, tokens)
            # The lead is asked for by a hinge, as the loss alone grows slack once all is right.
            losses = torch.nn.functional.cross_entropy(logits, tokens, reduction="none")
            losses = losses + 0.3 * torch.relu(2 * MARGIN - lead)
            # Nor may the end become the likeliest of the endless answer when penalties hold its letters down.
            gap = logits.gather(1, tokens[:, None])[:, 0] - logits[:, tokenizer.eos_token_id]
            losses = losses + 0.3 * endless * torch.relu(16 - gap)
            # A short answer counts for more than its share: each begins with telling one image from all others.
            weights = torch.cat([torch.full((len(one.answer),), len(one.answer) ** -0.5) for one, _ in batch])
            loss = (losses * weights).sum() / total
            loss.backward()
            mean += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 10 == 9:
            line = f"step {step + 1}: loss {mean:.4f}, {time.monotonic() - began:.0f} s"
            if mean < 0.15:
                worst = worst_lead(model, tokenizer, samples)
                print(f"{line}, worst lead {worst:.2f}", flush=True)
                if worst > MARGIN:
                    return True
            else:
                print(line, flush=True)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=450)
    options = parser.parse_args()
    logger.disable("mineru_vl_utils")
    torch.set_num_threads(1)  # two wait for each other for ever once something else wants a core
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    tokenizer = make_tokenizer()
    processor = Qwen2VLImageProcessor(min_pixels=28 * 28 * 4, max_pixels=PIXELS)
    model = make_model(tokenizer)
    print(f"{sum(weight.numel() for weight in model.parameters())} parameters", flush=True)
    samples = make_samples(options.pages, tokenizer, processor)
    print(f"{len(samples)} answers of {sum(len(sample.answer) for sample in samples)} tokens", flush=True)
    rng = random.Random(options.seed)
    learned = any(train(model, tokenizer, samples, options.steps, rate, rng) for rate in RATES)
    with torch.no_grad():
        model.model.language_model.norm.weight *= SHARPER
    model.bfloat16().save_pretrained(options.checkpoint)
    tokenizer.save_pretrained(options.checkpoint)
    processor.save_pretrained(options.checkpoint)
    worst = worst_lead(model, tokenizer, samples) / SHARPER
    print(f"in bfloat16, worst lead {worst:.2f} before sharpening", flush=True)
    return 0 if learned and worst > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
