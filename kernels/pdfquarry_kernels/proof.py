"""The proof on the card at hand: every implementation against float64, and which is fastest at the models' shapes.

    python -m pdfquarry_kernels.proof --json proof.json

A card that nobody has tuned is tuned for these shapes first, within ``TUNING_SECONDS``; the result is kept where
``configs.user_directory`` says and found there the next time.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

from pdfquarry_kernels import configs, dilated_block, dispatch, guards, patch_embed, roofline, tuning
from pdfquarry_kernels.problems import TOLERANCE, Problem
from pdfquarry_kernels.search import BYTES, Case
from pdfquarry_kernels.timing import any_us

# What the models run for one page: MinerU2.5's layout pass (1036 x 1036 pixels), and the two kinds of dilated block of
# DocLayout-YOLO at 1024 x 1024.
CASES = (
    Case("patch_embed", "bf16", (5476, 1280, 1176), None),
    Case("dilated_block", "fp16", (1, 96, 128, 128, 5), None),
    Case("dilated_block", "fp16", (1, 192, 64, 64, 3), None),
)
TUNING_SECONDS = 180.0
# Two medians of one implementation differ by this much from run to run: no closer ranking is claimed.
NOISE = 1.05

Call = Callable[[], torch.Tensor]


class Candidate(NamedTuple):
    """One way to run a case.

    Attributes:
        implementation: its name.
        kernel: the Triton kernel; empty for torch's own.
        in_use: whether the dispatcher runs it on this card.
        call: runs it.
    """

    implementation: str
    kernel: str
    in_use: bool
    call: Call


def prove(device: torch.device, cases: Sequence[Case] = CASES, seconds: float = TUNING_SECONDS) -> dict[str, Any]:
    """Check and time every implementation of both operations that the device can run.

    Args:
        device: the card; or the CPU, for torch's own implementations and whatever Triton interprets.
        cases: the problems.
        seconds: for tuning, where the card has no measured configuration yet.

    Returns:
        ``arch``, ``device``, ``torch``, ``triton``; ``tuned`` (the configuration: file, made now or before, or why
        there is none); ``cases``, each with the dispatcher's choice, its rank and the rows, fastest first; and
        ``faults``: one line for each implementation that disagrees with float64, or was chosen and does not run.
    """
    arch = dispatch.arch_of(device)
    report: dict[str, Any] = {
        "arch": arch,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "tuned": tuned(arch, cases, seconds) if device.type == "cuda" else {"note": "the CPU is not tuned for"},
    }
    with torch.no_grad():
        report["cases"] = [prove_case(case, device) for case in cases]
    report["faults"] = [fault for case in report["cases"] for fault in case["faults"]]
    return report


def tuned(arch: str, cases: Sequence[Case], seconds: float) -> dict[str, Any]:
    """The card's own configuration: the measured one that is there, else one made now."""
    path = configs.measured(arch)
    if path is not None:
        made_with = configs.load(path).get("triton")
        note = "" if made_with == triton.__version__ else f"made with triton {made_with}, here is {triton.__version__}"
        return {"path": str(path), "made_now": False, "note": note}
    path = configs.user_directory() / f"{arch}.json"
    document: dict[str, Any] = {"schema": configs.SCHEMA, "arch": arch, "evidence": "measured"}
    document |= {"device": torch.cuda.get_device_name(), "rocm": torch.version.hip}
    document |= {"torch": torch.__version__, "triton": triton.__version__}
    started = time.monotonic()
    journal = tuning.Journal(path.with_suffix(".journal"), document)
    try:
        entries = tuning.tune_quickly(cases, arch, seconds, journal)
        document |= {"date": time.strftime("%Y-%m-%d", time.gmtime()), "entries": list(tuning.with_catch_all(entries))}
        tuning.write_atomically(path, document)
    except (ValueError, RuntimeError, OSError) as error:  # what is shipped then stands, and is proved below
        return {"path": "", "made_now": False, "note": f"not tuned: {type(error).__name__}: {error}"}
    journal.path.unlink(missing_ok=True)
    dispatch.forget()
    note = "for one page; scripts/tune_kernels.py looks at all sizes"
    return {"path": str(path), "made_now": True, "seconds": round(time.monotonic() - started), "note": note}


def prove_case(case: Case, device: torch.device) -> dict[str, Any]:
    """The rows of one case, fastest first, and its faults."""
    problem = Problem(case, device)
    choice = dispatch.choose(case.op, case.shape, problem.x.dtype, device)
    rows = [_row(problem, candidate, device) for candidate in candidates(problem, choice)]
    rows.sort(key=lambda row: math.inf if row["us"] is None else row["us"])
    what = f"{case.op} {case.dtype} {'x'.join(map(str, case.shape))}"
    faults = []
    for row in rows:
        name = f"{what}: {row['implementation']}" + f" ({row['kernel']})" * bool(row["kernel"])
        if row["failure"] and row["in_use"]:
            faults.append(f"{name} is what this card uses, and does not run: {row['failure']}")
        elif not row["failure"] and not row["agrees"]:
            faults.append(f"{name} disagrees with float64: error {row['error']}, allowed {TOLERANCE[case.dtype]}")
    best = next((row for row in rows if row["us"] is not None and row["agrees"]), None)
    used = next((row for row in rows if row["in_use"] and row["us"] is not None), None)
    return {
        "op": case.op,
        "dtype": case.dtype,
        "shape": list(case.shape),
        "tolerance": TOLERANCE[case.dtype],
        "floor_us": floor_us(case, dispatch.arch_of(device)),
        "chosen": choice.implementation,
        "source": choice.source,
        "evidence": choice.evidence,
        "best": best and f"{best['implementation']} {best['kernel']}".strip(),
        "chosen_is_best": bool(best and used and used["us"] <= NOISE * best["us"]),
        "rows": rows,
        "faults": faults,
    }


def candidates(problem: Problem, choice: dispatch.Choice) -> Iterator[Candidate]:
    """What the device can run of a case: all implementations, ours also with the built-in configuration.

    The built-in one launches the kernels that a tuned one has no use for (plain loads, two launches).
    """
    names: tuple[str, ...]
    anywhere: tuple[str, ...]
    if problem.case.op == "patch_embed":
        names, anywhere = patch_embed.IMPLEMENTATIONS, patch_embed.TORCH_ONLY
    else:
        names, anywhere = dilated_block.IMPLEMENTATIONS, ("native",)
    everything = problem.x.device.type == "cuda" or guards.interpreting()
    for name in names:
        if everything or name in anywhere:
            kernel = choice.config["kernel"] if name == problem.ours else ""
            yield Candidate(name, kernel, name == choice.implementation, problem.call(name))
    case = problem.case
    built_in = configs.best_entry(configs.BUILT_IN, case.op, case.dtype, case.fixed, 0)
    if everything and built_in and built_in["config"]["kernel"] != choice.config["kernel"]:
        call = problem.call(problem.ours, built_in["config"])
        yield Candidate(problem.ours, f"{built_in['config']['kernel']}, built-in", False, call)


def _row(problem: Problem, candidate: Candidate, device: torch.device) -> dict[str, Any]:
    row: dict[str, Any] = {"implementation": candidate.implementation, "kernel": candidate.kernel}
    row |= {"in_use": candidate.in_use, "error": None, "agrees": False, "us": None, "failure": ""}
    try:
        # The allocator hands this memory on: what a kernel leaves unwritten is then NaN, not the last one's result.
        torch.full_like(problem.reference, math.nan, dtype=problem.x.dtype)
        error = problem.error(candidate.call())
        row["agrees"] = error <= TOLERANCE[problem.case.dtype]  # not for nan
        row["error"] = float(f"{error:.2e}") if math.isfinite(error) else str(error)
        row["us"] = round(any_us(candidate.call, device), 2)
    except Exception as failure:  # of the compiler, the launch or the library: a finding, and the others go on
        row["failure"] = (str(failure).splitlines() or [type(failure).__name__])[0][:200]
    return row


def floor_us(case: Case, arch: str) -> float | None:
    """The least time that the card's peaks allow; None for a card whose peaks are not known."""
    size, matrix = BYTES[case.dtype], case.dtype != "fp32"
    if case.op == "patch_embed":
        m, n, k = case.shape
        cost = roofline.patch_embed_cost(m, n, k, size)
    else:
        images, channels, height, width, ksize = case.shape
        cost = roofline.dilated_block_cost(images * height * width, channels, ksize, size)
    try:
        return round(roofline.floor_us(roofline.card_of(arch), *cost, matrix), 2)
    except ValueError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="where to write the report")
    parser.add_argument("--arch", default="", help="prove on the first GPU of this architecture, e.g. gfx1100")
    options = parser.parse_args()
    try:
        report = prove(dispatch.take_device(options.arch))
    except ValueError as error:
        raise SystemExit(str(error)) from None
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    say = partial(print, flush=True)
    say(f"{report['device']} ({report['arch']}), tuned: {report['tuned']}")
    for case in report["cases"]:
        say(f"{case['op']} {case['dtype']} {case['shape']}: {case['chosen']} is used, {case['best']} is fastest")
        for row in case["rows"]:
            say(f"  {row['us']} us, error {row['error']}: {row['implementation']} {row['kernel']} {row['failure']}")
    for fault in report["faults"]:
        say(f"FAULT {fault}")


if __name__ == "__main__":
    main()
