"""The proof: a kernel that computes wrong is named, whatever is fastest; and a card's own configuration is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pdfquarry_kernels import configs, dispatch, patch_embed, proof, tuning
from pdfquarry_kernels.problems import Problem
from pdfquarry_kernels.search import Case

CPU = torch.device("cpu")
PATCHES = Case("patch_embed", "fp32", (24, 16, 1176), None)
BLOCK = Case("dilated_block", "fp32", (1, 12, 8, 8, 3), None)


def test_every_implementation_that_runs_here_is_checked_and_ranked() -> None:
    report = proof.prove(CPU, [PATCHES, BLOCK])
    assert report["faults"] == []
    found = {case["op"]: {row["implementation"] for row in case["rows"]} for case in report["cases"]}
    assert found == {"patch_embed": set(patch_embed.TORCH_ONLY), "dilated_block": {"native"}}
    for case in report["cases"]:
        times = [row["us"] for row in case["rows"]]
        assert times == sorted(times) and all(row["agrees"] for row in case["rows"])
    (used,) = [row for row in report["cases"][0]["rows"] if row["in_use"]]
    assert used["implementation"] == report["cases"][0]["chosen"] == "linear"
    assert json.loads(json.dumps(report)) == report


def wrong(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    right = patch_embed._RUN["linear_aligned"]
    return lambda *arguments: change(right(*arguments))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda y: y * 1.001, id="a little off"),
        pytest.param(lambda y: y.index_fill(0, torch.tensor([3]), 0.0), id="one row unwritten"),
        pytest.param(lambda y: y * math.nan, id="not a number"),
    ],
)
def test_a_kernel_that_is_wrong_is_named(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(patch_embed._RUN, "linear_aligned", wrong(change))
    report = proof.prove(CPU, [PATCHES])
    (fault,) = report["faults"]
    assert fault.startswith("patch_embed fp32 24x16x1176: linear_aligned disagrees with float64: error ")
    assert report["cases"][0]["best"] != "linear_aligned"
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def failing(*arguments: Any) -> torch.Tensor:
    raise RuntimeError("miopenStatusUnknownError\nmore")


def test_what_does_not_run_is_a_fault_only_where_it_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(patch_embed._RUN, "conv3d", failing)
    report = proof.prove(CPU, [PATCHES])
    assert report["faults"] == []
    (row,) = [row for row in report["cases"][0]["rows"] if row["implementation"] == "conv3d"]
    assert row["failure"] == "miopenStatusUnknownError" and row["us"] is None
    assert report["cases"][0]["rows"][-1] is row
    monkeypatch.setitem(patch_embed._RUN, "linear", failing)
    (fault,) = proof.prove(CPU, [PATCHES])["faults"]
    assert "linear is what this card uses, and does not run: miopenStatusUnknownError" in fault


def test_a_faster_way_than_the_one_in_use_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5.0, 2.0, 3.0])  # conv3d, linear, linear_aligned
    monkeypatch.setattr(proof, "any_us", lambda call, device: next(times))
    case = proof.prove_case(PATCHES, CPU)
    assert case["chosen_is_best"] and case["best"] == "linear"
    times = iter([5.0, 3.0, 2.0])
    case = proof.prove_case(PATCHES, CPU)
    assert not case["chosen_is_best"] and case["best"] == "linear_aligned"


def test_a_tuned_card_is_not_tuned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "tune_quickly", lambda *_: pytest.fail("tuned again"))
    found = proof.tuned("sm_90", [PATCHES], 60)
    assert found["path"] == str(configs.SHIPPED / "sm_90.json") and not found["made_now"]


def test_a_card_that_nobody_measured_is_tuned_once_and_the_result_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"op": "patch_embed", "dtypes": ["bf16"], "shape": {"N": 16, "K": 1176}, "up_to": None, "use": "conv3d"}
    made: list[float] = []

    def quickly(cases: Any, arch: str, seconds: float, journal: tuning.Journal) -> list[dict[str, Any]]:
        made.append(journal.time("a", lambda: 1.0))
        return [entry | {"config": {"kernel": "plain"}}]

    monkeypatch.setattr(tuning, "tune_quickly", quickly)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Radeon")
    first = proof.tuned("gfx1100", [PATCHES], 60)
    assert first["made_now"] and first["path"] == str(configs.user_directory() / "gfx1100.json")
    again = proof.tuned("gfx1100", [PATCHES], 60)
    assert not again["made_now"] and again["path"] == first["path"] and made == [1.0]
    assert configs.lookup("gfx1100", "patch_embed", "bf16", {"N": 16, "K": 1176}, 5).entry["use"] == "conv3d"
    assert list(configs.user_directory().iterdir()) == [configs.user_directory() / "gfx1100.json"]
    dispatch.forget()


def test_a_card_that_can_not_be_tuned_keeps_what_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Radeon")
    monkeypatch.setattr(proof.tuning, "tune_quickly", lambda *_: (_ for _ in ()).throw(ValueError("arch: no card")))
    assert proof.tuned("gfx803", [PATCHES], 60)["note"] == "not tuned: ValueError: arch: no card"


def test_tuning_that_runs_out_of_time_still_measures_what_is_in_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    measured: list[Any] = []
    monkeypatch.setattr(Problem, "__init__", lambda self, case: vars(self).update(case=case, ours="triton_gemm"))
    monkeypatch.setattr(Problem, "checked_us", lambda self, config, tolerance: measured.append(config) or 5.0)
    monkeypatch.setattr(Problem, "us", lambda self, config: 5.0)
    monkeypatch.setattr(Problem, "rivals_us", lambda self: {"linear": 9.0})
    journal = tuning.Journal(tmp_path / "j", {})
    entry = tuning.tune_case(PATCHES, [{"kernel": "other"}], {"kernel": "now"}, journal, until=0.0)
    assert measured == [{"kernel": "now"}] and entry["config"] == {"kernel": "now"} and entry["use"] == "triton_gemm"


def test_the_memory_of_a_result_is_poisoned_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    poisons: list[float] = []
    full_like = torch.full_like
    monkeypatch.setattr(torch, "full_like", lambda t, value, **k: poisons.append(value) or full_like(t, value, **k))
    report = proof.prove_case(PATCHES, CPU)
    assert len(poisons) == len(report["rows"]) and all(math.isnan(value) for value in poisons)


def test_the_card_that_the_run_works_on_is_taken_and_not_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(dispatch, "arch_of", lambda device: ["gfx1036", "gfx1100", "gfx1100"][device.index])
    assert dispatch.take_device("gfx1100") == taken.pop() == torch.device("cuda", 1)
    assert dispatch.take_device("gfx1036") == taken.pop() == torch.device("cuda", 0)
    assert dispatch.take_device("") == taken.pop() == torch.device("cuda", 1)
    assert dispatch.take_device("cpu") == CPU and not taken
    with pytest.raises(ValueError, match=r"arch: torch sees no gfx1201 here, only \['gfx1036'"):
        dispatch.take_device("gfx1201")
