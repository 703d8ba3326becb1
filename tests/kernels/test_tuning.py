"""Tuning: what it keeps, what it writes, and that it goes on where it was stopped."""

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from pdfquarry_kernels import configs, tuning
from pdfquarry_kernels.roofline import CARDS, card_of
from pdfquarry_kernels.search import Case, Verdict, cases, grid, judge


def test_the_default_stays_unless_another_is_clearly_faster() -> None:
    pick = tuning.pick
    assert pick({"default": 102.0, "other": 100.0}, "default") == "default"
    assert pick({"default": 103.0, "other": 100.0}, "default") == "other"
    assert pick({"other": 100.0}, "default") == "other"


def test_a_stopped_run_goes_on_from_its_journal(tmp_path: Path) -> None:
    journal_of = tuning.Journal
    path, versions = tmp_path / "gfx1100.journal", {"triton": "3.6.0"}
    assert journal_of(path, versions).time("a", lambda: 12.5) == 12.5
    with path.open("a") as file:
        file.write('{"key": "b", "us"')  # killed while writing
    again = journal_of(path, versions)
    assert again.time("a", lambda: pytest.fail("measured twice")) == 12.5
    assert again.time("b", lambda: 3.0) == 3.0
    other = journal_of(path, {"triton": "3.9.0"})
    assert other.time("a", lambda: 1.0) == 1.0


def test_a_result_that_failed_is_kept_as_failed(tmp_path: Path) -> None:
    journal_of = tuning.Journal
    journal_of(tmp_path / "j", {}).time("a", lambda: math.nan)
    assert math.isnan(journal_of(tmp_path / "j", {}).time("a", lambda: 1.0))


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write = tuning.write_atomically
    path = tmp_path / "new" / "gfx1100.json"
    write(path, {"entries": [], "schema": 1})
    with pytest.raises(TypeError):
        write(path, {"entries": object()})
    assert json.loads(path.read_text()) == {"entries": [], "schema": 1}


def test_equal_buckets_are_merged_and_other_shapes_answered() -> None:
    merge = tuning.with_catch_all

    def entry(up_to: int | None, config: str) -> dict[str, Any]:
        common = {"op": "patch_embed", "dtypes": ["bf16"], "shape": {"N": 1}, "use": "linear"}
        return common | {"up_to": up_to, "config": {"kernel": config}, "us": up_to}

    merged = list(merge([entry(1, "a"), entry(2, "b"), entry(3, "b"), entry(None, "b")]))
    assert [(e["up_to"], e["config"]["kernel"]) for e in merged] == [
        (1, "a"),
        (None, "b"),
        (None, "b"),
    ]
    assert merged[-1]["shape"] == {} and "us" not in merged[-1]


def test_what_the_model_cannot_tell_apart_leaves_registers_free() -> None:
    most_robust = tuning.most_robust

    def pair(name: str, us: float, registers: int, reread: float) -> tuple[dict[str, str], Verdict]:
        return {"name": name}, Verdict([], us, 90.0, registers, reread)

    sound = [
        pair("tight", 100, 250, 0.01),
        pair("roomy", 102, 130, 0.02),
        pair("small", 101, 90, 0.04),
    ]
    assert most_robust([*sound, pair("slow", 120, 40, 0.01)], "gfx1100")[0] == {"name": "roomy"}
    assert most_robust(sound[:1], "gfx1100")[0] == {"name": "tight"}


def test_every_case_has_candidates_on_every_card() -> None:
    for arch in ("gfx1100", "gfx942", "sm_90"):
        for case in cases():
            kernels = {config["kernel"] for config in grid(case, arch)}
            assert kernels and ("tma" in kernels) <= (arch == "sm_90")


def test_a_card_nobody_listed_is_modelled_by_a_relative() -> None:
    assert card_of("gfx1103") == CARDS["gfx1100"]
    assert card_of("sm_89") == CARDS["sm_90"]
    with pytest.raises(ValueError, match=r"^arch: no card is known for 'gfx803'"):
        card_of("gfx803")


def test_an_entry_without_a_card_is_chosen_from_what_compiles_soundly(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("patch_embed", "bf16", (5476, 1280, 1176), 5476)
    good = {"kernel": "plain", "BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP_M": 8}
    good |= {"num_warps": 8, "num_stages": 1}
    spilling = good | {"BLOCK_M": 256, "BLOCK_N": 256}
    assert judge(case, spilling, "gfx1100").faults
    monkeypatch.setattr(tuning, "grid", lambda case, arch: iter([spilling, good]))
    with ThreadPoolExecutor(1) as pool:
        entry = tuning.model_case(case, cast(Any, pool), "gfx1100")
    assert entry["config"] == good and entry["use"] == "triton_gemm"
    found = configs.best_entry([entry], "patch_embed", "fp16", case.fixed, 5476)
    assert found is entry


GOOD = {"kernel": "plain", "BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 8, "num_stages": 1}


def test_a_bounded_tuning_measures_what_compiles_soundly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = Case("patch_embed", "bf16", (5476, 1280, 1176), None)
    monkeypatch.setattr(tuning, "grid", lambda case, arch: iter([GOOD | {"BLOCK_M": 256, "BLOCK_N": 256}, GOOD]))
    measured: list[Any] = []
    monkeypatch.setattr(tuning, "tune_case", lambda *arguments: measured.append(arguments) or {"entry": 1})
    assert tuning.tune_quickly([case], "gfx1100", 60, tuning.Journal(tmp_path / "j", {})) == [{"entry": 1}]
    ((found, candidates, default, _, _),) = measured
    assert found == case and candidates == [GOOD] and default == tuning.default_of(case, "gfx1100")


def test_compilation_that_takes_too_long_leaves_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("patch_embed", "bf16", (5476, 1280, 1176), None)
    monkeypatch.setattr(tuning, "judge", lambda case, config, arch: time.sleep(0.2) or Verdict([], 1.0, 1.0, 1, 1.0))
    with ThreadPoolExecutor(1) as pool:
        found = tuning.survivors(cast(Any, pool), case, "gfx1100", 100, timeout=0.5)
        pool.shutdown(cancel_futures=True)
    assert len(found) < len(list(grid(case, "gfx1100")))
