"""Profiles one vision forward and one layout forward with ``torch.profiler``: the method of the guides, automated.

    python -m pdfquarry_kernels.profiling --json profile.json

Each model has its real dimensions and random weights, and is profiled as its authors wrote it and with PDF Quarry's
replacement. Without a GPU everything is reduced and runs on the CPU: that shows the report, and nothing about a GPU.
A model whose package is missing is left out, with the reason. ``traces`` says what the columns mean.
"""

import argparse
import importlib.metadata
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from pdfquarry_kernels import configs, guards, patches, roofline, subjects, traces
from pdfquarry_kernels.dispatch import arch_of, take_device
from pdfquarry_kernels.roofline import Card
from pdfquarry_kernels.subjects import Subject

WARMUPS = 2  # the search for a convolution's kernel and Triton's compilation belong to no forward


def profile_models(device: torch.device) -> dict[str, Any]:
    """Profile every model on the device; reduced ones on the CPU.

    Returns:
        ``device``, ``reduced``, ``peaks`` (the card whose roofline is used, or null), ``models`` (one for each subject
        that ran, with its ``operators``), ``left_out`` (model, reason), and ``patches``, as ``list_patches`` says.
    """
    small = device.type == "cpu"
    card = None if small else card_here(device)
    report: dict[str, Any] = {
        "device": "CPU" if small else torch.cuda.get_device_name(device),
        "reduced": small,
        "torch": torch.__version__,
        "ratio": traces.FALLBACK_RATIO,
        "peaks": card and {"name": card.name} | {k: getattr(card, k) for k in ("matrix", "vector", "bandwidth")},
        "models": [],
        "left_out": [],
    }
    for name, of_model in subjects.MODELS.items():
        try:
            # Not inference mode: weights that are made in it have no version, and so get no aligned copy.
            with torch.no_grad():
                for subject in of_model(device, small):
                    report["models"].append(measured(subject, device, card))
        except Exception as error:  # one model that doesn't run is a finding, and no reason to lose the others
            first = (str(error).splitlines() or [""])[0][:300]
            report["left_out"].append({"model": name, "reason": f"{type(error).__name__}: {first}"})
    report["patches"] = [vars(patch) for patch in patches.list_patches()]
    report["layout_models"] = {name: _installed(name) for name in ("mineru", "doclayout-yolo", "transformers")}
    return report


def measured(subject: Subject, device: torch.device, card: Card | None) -> dict[str, Any]:
    """The report of one subject: its time, its ten costliest operators, and what looks like a fallback."""
    rows = traces.operators(record(subject.forward, device), card)
    shown = [row._asdict() | {"kernels": [name[:100] for name in row.kernels[:3]]} for row in traces.costliest(rows)]
    return {
        "model": subject.model,
        "state": subject.state,
        "note": subject.note,
        "patch": subject.patch,
        "us": sum(row.us for row in rows),
        "operators": shown,
        "fallbacks": sum(bool(row.fallback) for row in rows),
    }


def record(forward: Callable[[], object], device: torch.device) -> list[dict[str, Any]]:
    """The events of one forward after ``WARMUPS`` others."""
    gpu = device.type == "cuda"
    wait = partial(torch.cuda.synchronize, device) if gpu else lambda: None
    for _ in range(WARMUPS):
        forward()
    wait()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if gpu else [ProfilerActivity.CPU]
    with profile(activities=activities, record_shapes=True) as profiler:
        forward()
        wait()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False)
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


def card_here(device: torch.device) -> Card:
    """The card's peaks by its data sheet, where the architecture is known; else as measured now."""
    from pdfquarry_kernels.timing import any_us

    arch = arch_of(device)
    known = roofline.CARDS.get(arch) or roofline.CARDS.get(configs.family(arch))
    if known:
        return known
    n = 4096

    def product_tflops(dtype: torch.dtype) -> float:
        a = torch.randn(n, n, device=device, dtype=dtype)
        with guards.true_fp32(dtype):
            return 2e-6 * n**3 / any_us(lambda: a @ a, device)

    buffer = torch.empty(1 << 28, dtype=torch.int8, device=device)
    bandwidth = 2e-3 * buffer.numel() / any_us(buffer.clone, device)
    return Card("measured here", 0, 0.0, product_tflops(torch.float16), product_tflops(torch.float32), bandwidth, 0)


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="where to write the report")
    parser.add_argument("--arch", help="profile on the first GPU of this architecture, e.g. gfx1100, or on the cpu")
    options = parser.parse_args()
    arch = options.arch or ("" if torch.cuda.is_available() else "cpu")
    try:
        report = profile_models(take_device(arch))
    except ValueError as error:
        raise SystemExit(str(error)) from None
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    for model in report["models"]:
        print(f"{model['model']}, {model['state']}: {model['us'] / 1e3:.2f} ms, {model['note']}", flush=True)
        for row in model["operators"]:
            print(f"  {row['us']:9.1f} us {row['calls']:4} {row['operator']} {row['shapes']} {row['fallback']}")
    for left in report["left_out"]:
        print(f"{left['model']}: left out: {left['reason']}", flush=True)


if __name__ == "__main__":
    main()
