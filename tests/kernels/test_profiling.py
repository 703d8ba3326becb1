"""The profile: what a trace is taken to say, and that real forwards give real traces.

The GPU traces here are written by hand in the form that torch.profiler exports; names of MIOpen's kernels and the time
of its naive one (6.7 ms a launch on a RX 7900 XTX) are those of public reports. No AMD GPU was at hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pdfquarry_kernels import patches, profiling, subjects, traces
from pdfquarry_kernels.roofline import CARDS

GFX1100, H200 = CARDS["gfx1100"], CARDS["sm_90"]
NAIVE = "naive_conv_ab_nonpacked_fwd_nchw_half_double_half"


def operator(name: str, ts: float, dur: float, number: int, **arguments: Any) -> dict[str, Any]:
    args = {"External id": number, "Input Dims": [], "Input type": [], "Concrete Inputs": []} | arguments
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def convolution(x: list[int], weight: list[int], dilation: int = 1, dtype: str = "c10::Half") -> dict[str, Any]:
    sides = len(x) - 2
    padding, ones = [dilation * (k // 2) for k in weight[2:]], [1] * sides
    if weight[2:] == x[2:]:
        padding, ones = [0] * sides, weight[2:]  # a patch embedding: stride == kernel
    inputs = ["", "", "", str(ones), str(padding), str([dilation] * sides), "False", str([0] * sides), "1"]
    return {
        "Input Dims": [x, weight, [], [], [], [], [], [], []],
        "Input type": [dtype, dtype, "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"],
        "Concrete Inputs": inputs,
    }


def kernel(name: str, dur: float, number: int | None = None, correlation: int = 0) -> dict[str, Any]:
    args = {"correlation": correlation} | ({} if number is None else {"External id": number})
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1e6, "dur": dur, "args": args}


def on_miopen(kernel_name: str, us: float, dilation: int = 3) -> list[dict[str, Any]]:
    """One 5x5 convolution of DocLayout-YOLO for a page of 1024 x 736 pixels, and what follows it, as ROCm traces it."""
    arguments = convolution([1, 96, 128, 92], [96, 96, 5, 5], dilation)
    return [
        operator("aten::conv2d", 0, 100, 1, **arguments),
        operator("aten::convolution", 2, 96, 2, **arguments),
        operator("aten::_convolution", 4, 92, 3, **arguments),
        operator("aten::miopen_convolution", 6, 88, 4, **arguments),
        kernel(kernel_name, us, number=4),
        operator("aten::silu", 200, 20, 5, **{"Input Dims": [[1, 96, 128, 92]], "Input type": ["c10::Half"]}),
        kernel("vectorized_elementwise_kernel", 12.0, number=5),
    ]


def test_miopens_naive_kernel_is_flagged_by_its_name_and_by_its_time() -> None:
    first, second = traces.operators(on_miopen(NAIVE, 6700.0), GFX1100)
    assert (first.operator, first.kernels, first.calls) == ("aten::convolution", (NAIVE,), 1)
    assert "MIOpen's naive kernel" in first.fallback and "times its roofline" in first.fallback
    assert first.ratio == pytest.approx(6700 / (2e-6 * 128 * 92 * 96 * 96 * 25 / GFX1100.matrix))
    assert (second.operator, second.us, second.fallback, second.ratio) == ("aten::silu", 12.0, "", None)


def test_the_name_alone_is_enough_where_no_peaks_are_known() -> None:
    first, _ = traces.operators(on_miopen(NAIVE, 6700.0), None)
    assert first.ratio is None and first.fallback.startswith("naive_conv")
    gpu = [*on_miopen("Im2d2Col_v2", 900.0), operator("aten::slow_conv_dilated2d", 10, 50, 6)]
    assert traces.operators(gpu, None)[0].fallback.startswith("slow_conv")


def test_an_ordinary_convolution_is_not_flagged() -> None:
    row = traces.operators(on_miopen("miopenSp3AsmConv_v30_3_1_gfx11_fp16_dot2_edc_f2x3_stride1", 300.0, 1), GFX1100)[0]
    assert 5 < row.ratio < traces.FALLBACK_RATIO and row.fallback == ""


def test_small_convolutions_are_not_held_to_a_floor_that_no_launch_reaches() -> None:
    arguments = convolution([1, 8, 16, 16], [8, 8, 3, 3])
    events = [operator("aten::convolution", 0, 9, 1, **arguments), kernel("implicit_gemm", 30.0, number=1)]
    assert traces.operators(events, H200)[0].ratio == 30.0 / traces.LEAST_US


def test_a_conv3d_that_is_a_matrix_product_is_flagged_on_any_card() -> None:
    """702.9 us is what cuDNN took on the H200 (docs/kernels.md)."""
    arguments = convolution([5476, 3, 2, 14, 14], [1280, 3, 2, 14, 14], dtype="c10::BFloat16")
    events = [operator("aten::convolution", 0, 9, 1, **arguments), kernel("cutlass3d", 702.9, number=1)]
    row = traces.operators(events, H200)[0]
    assert row.ratio == pytest.approx(42, abs=1) and "times its roofline" in row.fallback
    assert row.shapes.endswith("stride 2x14x14")


def test_kernels_find_their_operator_by_the_launch_where_the_profiler_gives_no_number() -> None:
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "hipModuleLaunchKernel", "pid": 1, "tid": 1, "ts": 50, "dur": 3}
    events = [
        operator("aten::convolution", 0, 96, 1, **convolution([1, 96, 128, 92], [96, 96, 5, 5])),
        operator("aten::miopen_convolution", 10, 80, 2),
        launch | {"args": {"correlation": 77}},
        kernel(NAIVE, 6700.0, correlation=77),
    ]
    assert [row.operator for row in traces.operators(events, GFX1100)] == ["aten::convolution"]


def test_kernels_launched_outside_of_operators_go_by_their_own_names() -> None:
    events = [operator("aten::silu", 0, 9, 1), kernel("fused_block_kernel", 70.0), kernel("fused_block_kernel", 30.0)]
    (row,) = traces.operators(events, GFX1100)
    assert (row.operator, row.calls, row.us, row.share) == ("fused_block_kernel", 2, 100.0, 1.0)


def test_what_looks_like_a_fallback_is_shown_below_the_ten_costliest_too() -> None:
    events = on_miopen(NAIVE, 6700.0) + [kernel(f"other_{number}", 10_000.0) for number in range(12)]
    shown = traces.costliest(traces.operators(events, GFX1100))
    assert len(shown) == 11 and shown[-1].kernels == (NAIVE,)


def test_equal_convolutions_are_one_row_and_others_are_not() -> None:
    events: list[dict[str, Any]] = []
    for number, dilation in enumerate((1, 3, 3)):
        arguments = convolution([1, 192, 64, 46], [192, 192, 3, 3], dilation)
        events.append(operator("aten::convolution", 100 * number, 50, number, **arguments))
        events.append(kernel("implicit_gemm", 20.0, number=number))
    rows = traces.operators(events, GFX1100)
    assert [(row.calls, row.shapes.partition("dilation ")[2]) for row in rows] == [(2, "3x3"), (1, "")]


def test_without_a_gpu_an_operator_costs_what_those_inside_leave() -> None:
    events = [operator("aten::linear", 0, 100, 1), operator("aten::addmm", 10, 70, 2), operator("aten::mm", 20, 50, 3)]
    assert {row.operator: row.us for row in traces.operators(events, None)} == {
        "aten::linear": 30,
        "aten::addmm": 20,
        "aten::mm": 50,
    }


def test_a_trace_of_another_kind_of_convolution_has_no_floor_and_no_error() -> None:
    odd = convolution([1, 8, 9, 9], [8, 8, 3, 3]) | {"Concrete Inputs": []}
    events = [operator("aten::convolution", 0, 9, 1, **odd), kernel("k", 5.0, number=1), {"ph": "M", "name": "x"}]
    assert traces.operators(events, GFX1100)[0].floor_us is None


CPU = torch.device("cpu")


def test_a_real_forward_is_profiled_with_and_without_the_patch() -> None:
    states, names = [], []
    for subject in subjects.vision(CPU, small=True):
        states.append(subject.state)
        names.append({row.operator for row in traces.operators(profiling.record(subject.forward, CPU), None)})
    assert states == ["as written", "patched"]
    assert "aten::convolution" in names[0] and "pdfquarry::patch_embed" not in names[0]
    assert "pdfquarry::patch_embed" in names[1] and "aten::convolution" not in names[1]


def test_the_ten_costliest_operators_are_told() -> None:
    found = profiling.measured(next(subjects.vision(CPU, small=True)), CPU, None)
    times = [row["us"] for row in found["operators"]]
    assert len(times) == 10 and times == sorted(times, reverse=True)
    assert found["us"] > sum(times) and all(0 < row["share"] < 1 for row in found["operators"])


def test_one_forward_is_recorded_and_the_warm_ups_are_not() -> None:
    layer = torch.nn.Conv2d(3, 4, 3).requires_grad_(False)
    rows = traces.operators(profiling.record(lambda: layer(torch.ones(1, 3, 8, 8)), CPU), None)
    assert [row.calls for row in rows if row.operator == "aten::convolution"] == [1]


def test_pp_doclayout_is_recognised_and_left_alone() -> None:
    (subject,) = subjects.pp_doclayout(CPU, small=True)
    assert subject.state == "left alone" and "recognised as pp-doclayout" in subject.note
    assert any(
        row.operator == "aten::convolution" for row in traces.operators(profiling.record(subject.forward, CPU), None)
    )


def test_a_model_that_does_not_run_is_left_out_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: torch.device, small: bool) -> Any:
        raise ImportError("No module named 'doclayout_yolo'")
        yield

    monkeypatch.setattr(subjects, "MODELS", {"broken": broken, subjects.VISION: subjects.vision})
    report = profiling.profile_models(CPU)
    assert report["left_out"] == [{"model": "broken", "reason": "ImportError: No module named 'doclayout_yolo'"}]
    assert len(report["models"]) == 2 and report["reduced"] and report["peaks"] is None
    assert json.loads(json.dumps(report)) == report


def test_weights_are_made_as_an_engine_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of inference mode, where an aligned copy can be kept; without gradients, which the kernels refuse."""
    seen: list[tuple[bool, bool]] = []

    def one(device: torch.device, small: bool) -> Any:
        weight = torch.ones(4, 4)
        seen.append((weight.is_inference(), torch.is_grad_enabled()))
        yield subjects.Subject("one", "as written", "", lambda: weight @ weight)

    monkeypatch.setattr(subjects, "MODELS", {"one": one})
    assert profiling.profile_models(CPU)["left_out"] == [] and seen == [(False, False)]


def test_without_triton_what_needs_none_is_profiled() -> None:
    """torch for the CPU comes without it."""
    said = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": KERNELS}
    )
    report = json.loads(said.stdout.splitlines()[-1])
    assert [model["state"] for model in report["models"]][:1] == ["as written"], said.stderr
    assert any("triton" in left["reason"] for left in report["left_out"])


KERNELS = str(Path(profiling.__file__).parents[1])
WITHOUT_TRITON = """
import json, sys, torch
sys.modules["triton"] = None
from pdfquarry_kernels import profiling, subjects
subjects.MODELS.pop(subjects.PADDLE)
print(json.dumps(profiling.profile_models(torch.device("cpu"))))
"""


def test_every_patch_that_a_subject_names_is_one_of_the_list() -> None:
    names = [patch.name for patch in patches.list_patches()]
    for prefix in ("vLLM", subjects.YOLO):
        assert sum(name.startswith(prefix) for name in names) == 1
