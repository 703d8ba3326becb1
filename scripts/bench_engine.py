"""Measure the vLLM engine against the bare one and against a loop over documents, on a GPU, with random weights.

    python scripts/bench_engine.py --out FOLDER                  # MinerU2.5's dimensions, compiled mode
    python scripts/bench_engine.py --out FOLDER --modes compiled eager
    VLLM_CPU_KVCACHE_SPACE=1 python scripts/bench_engine.py --out FOLDER --tiny     # a smoke run on a CPU

The Python must have vLLM, mineru-vl-utils, pypdfium2 and pebble. No weights are needed: vLLM makes them up, each answer
has a fixed length, and the layout that the model writes is replaced by fixed regions once it has been written, so all
ways do the same work on the same pages. What is timed, in pages a second, medians after a warm-up:

bare      ``vllm.LLM.generate`` in a process of its own, pictures prepared: all layouts at once, then all regions.
ours      pixels through link, socket, host and VlmPages to blocks, with as many pages in flight as the settings say.
loop      the same engine, all pages of a document at once, and the next document when they are done.

``layout`` times the first step alone. ``preparation`` says what the CPU manages without a model. FOLDER/engine.json is
written again after every pass, so that a run that is cut off has said something.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "workflow"), str(ROOT / "kernels")]
# Type and corners, in thousandths of the page. One is a picture, which is not read.
REGIONS = """header 80 30 900 50, title 150 80 850 130, text 80 160 480 330, text 80 350 480 560,
equation 80 580 480 640, text 80 660 480 930, text 520 160 920 300, table 520 320 920 560,
image 520 580 920 740, text 520 760 920 930, page_number 480 950 520 970"""
BLOCKS = [
    {"type": kind, "bbox": [int(edge) / 1000 for edge in edges], "angle": 0}
    for kind, *edges in (line.split() for line in REGIONS.replace("\n", " ").split(","))
]
CROPS = sum(block["type"] != "image" for block in BLOCKS)
WARM, RENDERED = 31, 30  # marks of passes that are not timed with the others


@dataclass
class Work:
    """Pages to read: sizes of the documents, a page's size in pixels, tokens of each answer."""

    documents: list[int]
    size: tuple[int, int]
    layout: int
    content: int

    def pixels(self, mark: int) -> list[bytes]:
        """Return all pages. Each mark gives other pixels, so that no cache knows a page from an earlier pass."""
        import numpy

        width, height = self.size

        def draw(page: int) -> bytes:
            rng = numpy.random.default_rng(page)
            gray = numpy.full((height, width), 255, numpy.uint8)
            for top in range(40, height - 64, 42):  # lines of text: spots in cells of 3 x 3, and spaces
                ink = rng.random((8, (width - 80) // 3)) < 0.35
                ink &= numpy.repeat(rng.random(ink.shape[1] // 24 + 1) < 0.85, 24)[: ink.shape[1]]
                line = numpy.where(ink, 32, 255).astype(numpy.uint8).repeat(3, 0).repeat(3, 1)
                gray[top : top + 24, 40 : 40 + line.shape[1]] = line
            return numpy.repeat((gray ^ mark)[:, :, None], 3, 2).tobytes()

        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            return list(pool.map(draw, range(sum(self.documents))))

    def tokens(self, regions: bool) -> int:
        """Return the tokens that one page costs to write."""
        return self.layout + (CROPS * self.content if regions else 0)


def work_of(tiny: bool, pages: int) -> Work:
    """Return documents of 1 to 30 pages, the same in every process."""
    rng, documents = random.Random(7), list[int]()
    while sum(documents) < pages:
        documents.append(rng.randint(1, 4 if tiny else 30))
    return Work(documents, (420, 594) if tiny else (1654, 2339), 6 if tiny else 250, 3 if tiny else 60)


def make_model(folder: Path, tiny: bool) -> None:
    """Write configuration, tokenizer and processor of MinerU2.5's dimensions, or of a tiny model; no weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLImageProcessor

    names = "endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start quad_end"
    names += " vision_start vision_end vision_pad image_pad video_pad"
    special = [f"<|{name}|>" for name in names.split()]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Qwen2's special tokens begin at 151643; what its merges fill is filled with words that no text has.
    letters += [f"\u0001{i}" for i in range(len(letters), 256 if tiny else 151643)]
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    ids = {token[2:-2]: tokenizer.token_to_id(token) for token in special}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=special[3:],
    )
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
        "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(folder)
    largest = 28 * 28 * (16 if tiny else 2048)
    Qwen2VLImageProcessor(min_pixels=28 * 28 * (1 if tiny else 4), max_pixels=largest).save_pretrained(folder)
    text = {
        "vocab_size": 320 if tiny else 151936,
        "hidden_size": 128 if tiny else 896,
        "intermediate_size": 256 if tiny else 4864,
        "num_hidden_layers": 2 if tiny else 24,
        "num_attention_heads": 2 if tiny else 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048 if tiny else 16384,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "bos_token_id": ids["endoftext"],
        "eos_token_id": ids["im_end"],
        # Sections fill half a head of 64.
        "rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12], "rope_theta": 1e6},
    }
    vision = {"depth": 2, "embed_dim": 64, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
    if not tiny:
        vision |= {"depth": 32, "embed_dim": 1280, "hidden_size": 896, "num_heads": 16, "mlp_ratio": 4}
    config = Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        tie_word_embeddings=True,
        dtype="float32" if tiny else "bfloat16",
    )
    config.architectures = ["Qwen2VLForConditionalGeneration"]
    config.save_pretrained(folder)


def fix_lengths(client: Any, work: Work) -> None:
    """Let every answer of a MinerUClient have its fixed length, whatever the model wants to write."""
    inner = client.client
    own = inner.build_vllm_sampling_params

    def build(params: Any) -> Any:
        found = own(params)
        found.ignore_eos = True
        # The layout's sampling is the one without a penalty.
        found.max_tokens = work.content if params.presence_penalty else work.layout
        return found

    inner.build_vllm_sampling_params = build


def blocks(wanted: list[dict[str, Any]]) -> list[Any]:
    """Return regions as the library has them when it has parsed a layout."""
    from mineru_vl_utils.structs import ContentBlock

    return [ContentBlock(one["type"], one["bbox"], angle=one["angle"]) for one in wanted]


def say(*words: object) -> None:
    print(time.strftime("%H:%M:%S"), *words, flush=True)


def scheduler(config: Any) -> dict[str, Any]:
    """Return what decides on vLLM's batches, as it has settled it."""
    return {name: getattr(config.scheduler_config, name) for name in ("max_num_batched_tokens", "max_num_seqs")}


# --- the bare engine, in a process of its own


def bare(model: str, arguments: dict[str, Any], work: Work, repeats: int, out: Path) -> None:
    """Time ``LLM.generate``, and what prepares its pictures."""
    import vllm
    from loguru import logger
    from mineru_vl_utils import MinerUClient, MinerULogitsProcessor
    from PIL import Image

    logger.remove()
    llm = vllm.LLM(model, logits_processors=[MinerULogitsProcessor], **arguments)
    client = MinerUClient("vllm-engine", vllm_llm=llm, use_tqdm=False)
    fix_lengths(client, work)
    inner, helper = client.client, client.helper
    found: dict[str, Any] = {"vllm": vllm.__version__, **scheduler(llm.llm_engine.vllm_config), "passes": []}

    def prompt(picture: Any, text: str) -> dict[str, Any]:
        messages = inner.build_messages(text, 1)
        chat = inner.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return {"prompt": chat, "multi_modal_data": {"image": [picture]}}

    def prepare(pixels: bytes) -> tuple[list[Any], list[Any]]:
        image = Image.frombytes("RGB", work.size, pixels)
        layout = prompt(helper.prepare_for_layout(image), client.prompts["[layout]"])
        pictures, prompts, params, _ = helper.prepare_for_extract(image, blocks(BLOCKS), None, None)
        asked = [prompt(picture, text) for picture, text in zip(pictures, prompts, strict=True)]
        first = (layout, inner.build_vllm_sampling_params(client.sampling_params["[layout]"]))
        return [first], list(zip(asked, map(inner.build_vllm_sampling_params, params), strict=True))

    def prepared(pages: list[bytes]) -> tuple[list[Any], list[Any]]:
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            each = list(pool.map(prepare, pages))
        return [one for layouts, _ in each for one in layouts], [one for _, crops in each for one in crops]

    def generate(requests: list[Any]) -> tuple[float, int]:
        started = time.perf_counter()
        outputs = llm.generate([one for one, _ in requests], [params for _, params in requests], use_tqdm=False)
        return time.perf_counter() - started, sum(len(one.outputs[0].token_ids) for one in outputs)

    say("bare: engine ready", scheduler(llm.llm_engine.vllm_config))
    for step in prepared(work.pixels(WARM)[:16]):
        generate(step)
    for mark in range(repeats):
        pages = work.pixels(mark)
        started = time.perf_counter()
        layouts, crops = prepared(pages)
        seconds = time.perf_counter() - started
        one, wrote = generate(layouts)
        two, more = generate(crops)
        assert wrote + more == len(pages) * work.tokens(True), "answers of another length"
        found["passes"].append({"layout": len(pages) / one, "pages": len(pages) / (one + two)})
        found["preparation"] = {"resize_and_crop": len(pages) / seconds}
        say("bare:", found["passes"][-1])
        out.write_text(json.dumps(found))
    layouts, crops = prepared(work.pixels(RENDERED)[:16])
    for name, requests in (("processor_layout", layouts), ("processor_all", layouts + crops)):
        if hasattr(llm, "renderer"):  # vLLM's own way through the image processor, in one thread
            started = time.perf_counter()
            llm.renderer.render_cmpl([one for one, _ in requests])
            found["preparation"][name] = len(layouts) / (time.perf_counter() - started)
    out.write_text(json.dumps(found))


# --- our engine: its process, and the job's side of it

_wanted: ContextVar[list[dict[str, Any]]] = ContextVar("wanted")


async def serve(model: str, arguments: dict[str, Any], work: Work, socket: Path) -> None:
    """Be the engine process: as ``pdfquarry.engine.host``, but what the model writes is taken for ``wanted``."""
    from loguru import logger

    from pdfquarry.engine import pages
    from pdfquarry.engine.clients import open_way
    from pdfquarry.engine.host import Host

    logger.remove()
    way = await open_way("vllm", model, arguments, {}, [], 60)
    fix_lengths(way.client, work)

    async def parse(_: Any, __: str) -> list[Any]:
        return blocks(_wanted.get())

    way.client.helper.aio_parse_layout_output = parse
    pages.find = lambda *_: None  # random words are trouble, and nothing is to be asked for twice
    reader = pages.VlmPages(way.client, max(work.layout, work.content), way.context, way.down)
    settled = scheduler(way.client.client.vllm_async_llm.vllm_config)

    class Engine:
        async def read(self, image: Any, regions: list[dict[str, Any]] | None) -> dict[str, Any]:
            _wanted.set(regions or [])
            return await reader.read(image, None)

        def steps(self) -> int:
            return way.steps() + reader.counts["requests"]

        def state(self) -> dict[str, Any]:
            return settled

        def verify(self, status: Path) -> None:
            pass

    await Host(Engine(), "benchmark", 0).serve(socket)


@dataclass
class Started:
    """The engine process, as a link wants it."""

    socket: Path
    process: subprocess.Popen[bytes]
    started: bool = True
    start_seconds: float = 0.0

    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        end(self.process)

    close = kill


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that was started in a session of its own, and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def stream(link: Any, work: Work, pages: list[bytes], window: int, regions: bool) -> float:
    """Send pages, at most ``window`` in flight, as ``pages.Pages`` does; return the seconds until all are read."""
    started, sent, done, wrote = time.perf_counter(), 0, 0, 0
    while done < len(pages):
        for answer in link.answers():
            if "error" in answer:
                raise SystemExit(f"engine: {answer['error']}")
            done += 1
            wrote += sum(one["tokens_out"] for one in answer["requests"])
        if link.lost():
            raise SystemExit("engine: it died or hangs; see its log")
        while sent < len(pages) and len(link.in_flight) < window:
            link.send(sent, work.size, pages[sent], BLOCKS if regions else [])
            sent += 1
        time.sleep(0.02)
    assert wrote == len(pages) * work.tokens(regions), "answers of another length"
    return time.perf_counter() - started


def one_by_one(link: Any, work: Work, pages: list[bytes]) -> float:
    """Read a document after the other; return seconds."""
    seconds, first = 0.0, 0
    for count in work.documents:
        seconds += stream(link, work, pages[first : first + count], count, True)
        first += count
    return seconds


def ours(open_process: Callable[[], Any], work: Work, repeats: int, window: int) -> Iterator[dict[str, Any]]:
    """Time our engine and the loop; yield what is known after each pass."""
    from pdfquarry.link import EngineLink

    link = EngineLink(open_process, 600)
    found: dict[str, Any] = {"passes": []}
    stream(link, work, work.pixels(WARM)[:16], 16, True)
    found |= link.state
    try:
        for mark in range(repeats):
            count = sum(work.documents)
            passes = {"pages": count / stream(link, work, work.pixels(mark), window, True)}
            found["passes"].append(passes)
            yield found
            passes["loop"] = count / one_by_one(link, work, work.pixels(mark + 10))
            yield found
            passes["layout"] = count / stream(link, work, work.pixels(mark + 20), window, False)
            yield found
    finally:
        link.close()


# --- rendering, in reader processes


def render(pages: tuple[str, list[int]], beat: Any) -> list[Any]:
    """Render pages as a reader does, inside one."""
    import pypdfium2

    from pdfquarry import pictures
    from pdfquarry.document import Task

    path, indices = pages
    task = Task("", [path], Path(), "", "", "", most_pixels=10**8, dpi=200)
    with pypdfium2.PdfDocument(path) as document:
        return [pictures._picture(document, index % len(document), task) for index in indices]


def nothing() -> None:
    """There is nothing to load in a reader here."""


def rendering(workers: int, pages: int) -> float:
    """Return pages a second, rendered at 200 dpi and handed over, of the sample corpus' A4 pages."""
    from pdfquarry.readers import Readers

    folder = ROOT / "tests/resources/corpus"
    paths = [str(folder / name) for name in ("papers/two-column.pdf", "reports/tables.pdf", "scans/letter.pdf")]
    tasks = [(paths[i % len(paths)], list(range(4))) for i in range(pages // 4 + 2 * workers)]
    count, begun = 0, 0.0
    for outcome in Readers(render, workers, 60, 4096, nothing).run(tasks, pause=0.02):
        if outcome is not None:
            assert isinstance(outcome[1], list), outcome[1]
            count += 1
            if count == 2 * workers:  # all have started
                begun = time.perf_counter()
    return 4 * (count - 2 * workers) / (time.perf_counter() - begun)


# --- all of it


def measure(options: argparse.Namespace, work: Work, model: Path) -> dict[str, Any]:
    """Run all parts; write the result after each pass."""
    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "documents": work.documents,
        "regions_a_page": CROPS,
        "tokens": {"layout": work.layout, "region": work.content},
        "window": options.window,
        "cores": os.cpu_count(),
    }

    def keep() -> None:
        (options.out / "engine.json").write_text(json.dumps(result, indent=1) + "\n")

    workers = max(1, (os.cpu_count() or 2) - 4)
    result["preparation"] = {"readers": workers, "render_200_dpi": rendering(workers, 24 if options.tiny else 960)}
    say("rendering:", result["preparation"])
    keep()
    for mode in options.modes:
        arguments = {"load_format": "dummy", "enforce_eager": mode == "eager"}
        arguments |= {"limit_mm_per_prompt": {"image": 1, "video": 0}} | options.arguments  # as the engine does
        if options.tiny:
            arguments |= {"max_model_len": 1024, "max_num_seqs": 8, "dtype": "float32"}
        found = result[mode] = {"arguments": arguments}
        command = [sys.executable, __file__, "--out", str(options.out), "--model", str(model)]
        command += ["--pages", str(options.pages), "--repeats", str(options.repeats)] + ["--tiny"] * options.tiny
        command += ["--arguments", json.dumps(arguments)]

        def start(part: str, mode: str = mode, command: list[str] = command) -> subprocess.Popen[bytes]:
            log = options.out / f"{mode}-{part}.log"
            # vLLM's processes find this repository's plugin only where it is installed; the bare engine has no patches.
            environ = os.environ | {"PDFQUARRY_PATCHES": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
            environ |= {"DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}
            with log.open("wb") as lines:
                process = subprocess.Popen(
                    [*command, "--part", part], stdout=lines, stderr=lines, env=environ, start_new_session=True
                )
            atexit.register(end, process)  # it would outlive this process otherwise
            return process

        def open_process(start: Any = start) -> Started:
            socket = model / "socket"
            socket.unlink(missing_ok=True)
            begun, process = time.monotonic(), start("ours")
            while not socket.exists():
                if process.poll() is not None:
                    raise SystemExit("our engine does not start; see its log")
                time.sleep(0.2)
            return Started(socket, process, True, time.monotonic() - begun)

        say(f"{mode}: bare engine starts")
        process = start("bare")
        try:
            if process.wait():
                raise SystemExit(f"the bare engine failed; see {options.out}/{mode}-bare.log")
        finally:
            end(process)
        found["bare"] = json.loads((model / "bare.json").read_text())
        result["preparation"] |= found["bare"].pop("preparation")
        say(f"{mode}: bare", median(found["bare"]), "; our engine starts")
        keep()
        for found["ours"] in ours(open_process, work, options.repeats, options.window):
            say(f"{mode}: ours", found["ours"]["passes"][-1])
            us, them = median(found["ours"]), median(found["bare"])
            found["ratios"] = {"ours_to_bare": us["pages"] / them["pages"]}
            found["ratios"] |= {"ours_to_loop": us["pages"] / us["loop"]} if "loop" in us else {}
            found["ratios"] |= {"layout_to_bare": us["layout"] / them["layout"]} if "layout" in us else {}
            keep()
    return result


def median(found: dict[str, Any]) -> dict[str, float]:
    """Return the medians over the passes."""
    names = {name for one in found["passes"] for name in one}
    return {name: statistics.median(one[name] for one in found["passes"] if name in one) for name in sorted(names)}


def table(result: dict[str, Any], modes: list[str]) -> str:
    """Return what was found, in Markdown."""
    lines = [
        "| mode | bare | ours | loop | ours / bare | ours / loop | layout, bare | layout, ours |",
        "|" + "---|" * 8,
    ]
    for mode in modes:
        them, us, ratios = median(result[mode]["bare"]), median(result[mode]["ours"]), result[mode]["ratios"]
        cells = [f"{them['pages']:.2f}", f"{us['pages']:.2f}", f"{us['loop']:.2f}"]
        cells += [f"{ratios['ours_to_bare']:.3f}", f"{ratios['ours_to_loop']:.3f}"]
        cells += [f"{them['layout']:.2f}", f"{us['layout']:.2f}"]
        lines.append(f"| {mode} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for engine.json and the logs")
    parser.add_argument("--modes", nargs="+", choices=["compiled", "eager"], default=["compiled"])
    parser.add_argument("--pages", type=int, default=0, help="at least; 128, or 12 with --tiny")
    parser.add_argument("--repeats", type=int, default=3, choices=range(1, 10))
    parser.add_argument("--window", type=int, default=64, help="pages in flight")
    parser.add_argument("--arguments", type=json.loads, default={}, help="of vLLM's engine, for both, in JSON")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and small pages, to try the script")
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=["bare", "ours"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = work_of(options.tiny, options.pages or (12 if options.tiny else 128))
    if options.part == "bare":
        bare(str(options.model), options.arguments, work, options.repeats, options.model / "bare.json")
    elif options.part == "ours":
        asyncio.run(serve(str(options.model), options.arguments, work, options.model / "socket"))
    else:
        import tempfile

        options.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            make_model(Path(folder), options.tiny)
            print(table(measure(options, work, Path(folder)), options.modes), flush=True)


if __name__ == "__main__":  # vLLM's children and the readers import this file again
    main()
