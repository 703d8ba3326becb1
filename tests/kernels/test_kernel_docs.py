"""docs/kernels.md shows what the committed results say."""

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

from pdfquarry_kernels import configs

ROOT = Path(__file__).resolve().parents[2]
BENCH: dict[str, Any] = json.loads((ROOT / "docs" / "benchmarks" / "sm_90.json").read_text())
SAVED: dict[str, Any] = json.loads((ROOT / "docs" / "benchmarks" / "compile-report.json").read_text())


def test_the_tables_match_the_committed_results(script: Callable[[str], ModuleType]) -> None:
    text = (ROOT / "docs" / "kernels.md").read_text()
    assert script("report_kernels").refreshed(text) == text


def test_the_compile_report_was_run_on_two_versions_and_found_nothing() -> None:
    assert len(SAVED) >= 2
    shipped = {path.stem for path in configs.SHIPPED.glob("*.json")}
    for rows in SAVED.values():
        assert {row["arch"] for row in rows} == shipped
        assert [row for row in rows if row["faults"]] == []


def test_the_choice_was_never_slower_than_the_best_by_more_than_three_percent() -> None:
    for row in (*BENCH["patch_embed"], *BENCH["dilated_block"]):
        assert row["us"][row["chosen"]] <= 1.03 * min(row["us"].values()), row


def test_every_implementation_was_right_on_the_card() -> None:
    for name, bound in (
        ("patch_embed", 2e-3),
        ("dilated_block", 4e-4),
        ("dilated_block_fp32", 1e-6),
    ):
        for row in BENCH[name]:
            assert max(row["error"].values()) < bound, row
    assert max(BENCH["beyond_32_bits_error"].values()) < 2e-3
    shipped = configs.load(configs.SHIPPED / "sm_90.json")["entries"]
    buckets = [e for e in shipped if e["shape"].get("C") == 96 and "fp16" in e["dtypes"]]
    assert BENCH["compilations_over_20_page_shapes"] <= len(buckets) < 20
    for row in BENCH["model"]:
        assert row["patched_error"] <= 1.05 * row["unpatched_error"], row


def test_the_dilated_block_reached_its_targets_on_the_card() -> None:
    gains = [row["us"]["native"] / row["us"]["triton"] for row in BENCH["dilated_block"]]
    assert min(gains) >= 1.5
    assert prod(gains) ** (1 / len(gains)) >= 2
    for row in BENCH["model"]:
        assert row["unpatched_us"] / row["patched_us"] >= 1.25, row
