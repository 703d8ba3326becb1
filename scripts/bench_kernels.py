"""Time every implementation of both operations on this card, check each against float64.

    python scripts/bench_kernels.py                       # writes docs/benchmarks/<arch>.json
    python scripts/report_kernels.py --docs               # refreshes the tables of docs/kernels.md

Times are medians of graph replays with cold caches (``pdfquarry_kernels.timing``); host times are
what a call costs the Python thread. The whole-model rows need doclayout-yolo and are left out
without it. A run takes some two minutes.
"""

import argparse
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from pdfquarry_kernels import dilated_block, guards, patch_embed
from pdfquarry_kernels.dispatch import arch_of, choose
from pdfquarry_kernels.problems import Problem, random_block
from pdfquarry_kernels.search import IMAGES, Case
from pdfquarry_kernels.timing import device_us

PATCHES = (1024, 5476, 16384, 65536)
HOST_CALLS = 200
PLAIN = {"kernel": "plain", "BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8}
PLAIN |= {"num_warps": 8, "num_stages": 3}
TWO_STEP = {"kernel": "two_step", "TILE_H": 8, "TILE_W": 16, "num_warps": 4, "num_stages": 3}


def host_us(call: Callable[[], object]) -> float:
    """Microseconds that the calling thread spends on one call, the GPU's work not awaited."""
    call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(HOST_CALLS):
        call()
    spent = time.perf_counter() - started
    torch.cuda.synchronize()
    return spent / HOST_CALLS * 1e6


def row_of(problem: Problem, calls: dict[str, Callable[[], torch.Tensor]]) -> dict[str, Any]:
    """Times, errors and host times of the calls of one problem."""
    return {
        "us": {name: round(device_us(call), 2) for name, call in calls.items()},
        "error": {name: float(f"{problem.error(call()):.2e}") for name, call in calls.items()},
        "host_us": {name: round(host_us(call), 1) for name, call in calls.items()},
    }


def patch_embed_rows() -> list[dict[str, Any]]:
    rows = []
    for m in PATCHES:
        problem = Problem(Case("patch_embed", "bf16", (m, 1280, 1176), None))
        calls = {name: problem.call(name) for name in patch_embed.IMPLEMENTATIONS}
        calls["triton_gemm, plain loads"] = problem.call("triton_gemm", PLAIN)
        choice = choose("patch_embed", problem.case.shape, problem.x.dtype, problem.x.device)
        rows.append({"M": m, "chosen": choice.implementation} | row_of(problem, calls))
        print("patch_embed", m, rows[-1]["us"], choice.implementation, flush=True)
    return rows


def dilated_block_rows(dtype: str, shapes: list[tuple[int, int, int, int, int]]) -> list[dict[str, Any]]:
    rows = []
    for shape in shapes:
        problem = Problem(Case("dilated_block", dtype, shape, None))
        calls = {name: problem.call(name) for name in dilated_block.IMPLEMENTATIONS}
        third = shape[1] // 3
        tail = {"BLOCK_P": 64, "BLOCK_O": third, "BLOCK_C": third, "num_warps": 4, "num_stages": 2}
        blocks = {"BLOCK_N": third, "BLOCK_C": third, "tail": tail}
        if dtype != "fp32":
            calls["triton, two launches"] = problem.call("triton", TWO_STEP | blocks)
        choice = choose("dilated_block", shape, problem.x.dtype, problem.x.device)
        rows.append({"shape": list(shape), "chosen": choice.implementation} | row_of(problem, calls))
        print("dilated_block", dtype, shape, rows[-1]["us"], choice.implementation, flush=True)
    return rows


def page_shapes(count: int = 20) -> list[tuple[int, int, int]]:
    """Feature map sizes of ``count`` different pages (batch, height, width)."""
    return [(1 + i % 3, 40 + 7 * i, 33 + 5 * i) for i in range(count)]


def compilations() -> int:
    """How often the whole block is compiled over twenty page shapes."""
    seen: list[object] = []
    before = triton.knobs.runtime.jit_post_compile_hook
    triton.knobs.runtime.jit_post_compile_hook = lambda **event: seen.append(event)
    weights = random_block(96, 5, (1, 2, 1), torch.float16, "cuda")  # dilations not used elsewhere
    weights.shortcut = False  # nor this: what follows starts uncompiled
    try:
        for n, h, w in page_shapes():
            x = torch.randn(n, 96, h, w, device="cuda", dtype=torch.float16)
            dilated_block.dilated_block(x, weights, "triton")
    finally:
        triton.knobs.runtime.jit_post_compile_hook = before
    return len(seen)


def beyond_32_bits() -> dict[str, float]:
    """Relative error of the last rows of a patch embedding of more than 2^31 elements."""
    m, n, k = 2**31 // 1176 + 4096, 1280, 1176
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(n, 3, 2, 14, 14, device="cuda", dtype=torch.bfloat16) * 0.03
    last = x[-512:].double() @ weight.double().flatten(1).T
    errors = {}
    for name in ("triton_gemm", "triton_dot"):
        y = patch_embed.patch_embed(x, weight, None, name)[-512:].double()
        errors[name] = float(f"{float((y - last).norm() / last.norm()):.2e}")
    return errors


def model_rows() -> list[dict[str, Any]]:
    """The whole yolov10m-doclayout network with random weights, before and after patching."""
    try:
        from doclayout_yolo.nn.tasks import YOLOv10DetectionModel
    except ImportError:
        print("doclayout-yolo is not installed: no whole-model rows")
        return []
    from pdfquarry_kernels.doclayout import patch_doclayout

    def network(dtype: torch.dtype) -> torch.nn.Module:
        torch.manual_seed(0)
        model: Any = YOLOv10DetectionModel("yolov10m-doclayout.yaml", nc=10, verbose=False)
        model = model.cuda().requires_grad_(False).train()
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None  # statistics of what runs through it from here on
                module.reset_running_stats()
        model(torch.rand(2, 3, 512, 512, device="cuda"))  # else activations die out on the way
        made: torch.nn.Module = model.eval().to(dtype, memory_format=torch.channels_last)
        return made

    rows = []
    for batch, height, width in ((1, 1024, 1024), (8, 1024, 1024), (1, 1024, 736), (8, 1024, 736)):
        x = torch.rand(batch, 3, height, width, device="cuda", dtype=torch.float16)
        x = x.contiguous(memory_format=torch.channels_last)
        row: dict[str, Any] = {"shape": [batch, 3, height, width]}
        torch.backends.cudnn.benchmark = False
        with torch.no_grad(), guards.true_fp32(torch.float32):
            exact = network(torch.float32)
            boxes = first_tensor(exact(x.float()))
            patch_doclayout(exact)
            difference = (first_tensor(exact(x.float())) - boxes).abs().max()
            row["fp32_largest_difference"] = float(f"{float(difference):.2e}")
            del exact
        torch.backends.cudnn.benchmark = True
        for state in ("unpatched", "patched"):
            model = network(torch.float16)
            if state == "patched":
                row["blocks"] = patch_doclayout(model)
            with torch.no_grad():
                error = (first_tensor(model(x)) - boxes).norm() / boxes.norm()
                row[f"{state}_error"] = float(f"{float(error):.2e}")
                row[f"{state}_us"] = round(device_us(partial(model, x), repeats=10), 1)
                eager = []
                for _ in range(10):
                    torch.cuda.synchronize()
                    started = time.perf_counter()
                    model(x)
                    torch.cuda.synchronize()
                    eager.append((time.perf_counter() - started) * 1e6)
                row[f"{state}_eager_us"] = round(sorted(eager)[5], 1)
        rows.append(row)
        print("model", row, flush=True)
    return rows


def first_tensor(outputs: Any) -> torch.Tensor:
    """The boxes and scores of a YOLOv10 network's output (its one-to-one head)."""
    while not isinstance(outputs, torch.Tensor):
        outputs = outputs["one2one"] if isinstance(outputs, dict) else outputs[0]
    return outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU")
    device = torch.device("cuda", torch.cuda.current_device())
    document: dict[str, Any] = {
        "arch": arch_of(device),
        "device": torch.cuda.get_device_name(device),
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
    }
    with torch.no_grad():
        document["patch_embed"] = patch_embed_rows()
        document["dilated_block"] = dilated_block_rows("fp16", [*IMAGES[0], *IMAGES[1]])
        document["dilated_block_fp32"] = dilated_block_rows("fp32", [s[0] for s in IMAGES])
        document["compilations_over_20_page_shapes"] = compilations()
        document["beyond_32_bits_error"] = beyond_32_bits()
    document["model"] = model_rows()
    path = options.output / f"{document['arch']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written: {path}")


if __name__ == "__main__":
    main()
