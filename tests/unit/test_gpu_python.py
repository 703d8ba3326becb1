"""What runs in the interpreter for GPUs: the proof's verdict, its variables, and what happens when it breaks off."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from pdfquarry import gpu_python, profiling, proof
from pdfquarry.errors import EnvironmentFault
from pdfquarry.results import Results
from pdfquarry.settings import load

SEES_ONE = {"devices": [{"arch": "gfx1100"}]}
ROW = {"implementation": "linear", "kernel": "", "in_use": True, "error": 1e-3, "agrees": True, "us": 29.1}
CASE = {
    "op": "patch_embed",
    "dtype": "bf16",
    "shape": [5476, 1280, 1176],
    "tolerance": 0.02,
    "floor_us": 16.7,
    "chosen": "linear",
    "source": "built-in",
    "evidence": "none",
    "best": "triton_gemm tma",
    "chosen_is_best": False,
    "rows": [ROW | {"failure": ""}, ROW | {"implementation": "conv3d", "in_use": False, "us": None, "failure": "no"}],
}
REPORT = {
    "arch": "gfx1100",
    "device": "Radeon",
    "tuned": {"path": "/k/gfx1100.json", "made_now": True, "seconds": 95, "note": ""},
    "cases": [CASE],
    "faults": [],
}


def interpreter(folder: Path, body: str) -> str:
    """An interpreter of one's own that is run as ``python -m module --json FILE ...``."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def writes(report: Any) -> str:
    return f"open(sys.argv[4], 'w').write({json.dumps(report)!r})"


def test_a_kernel_that_disagrees_ends_the_environment_and_is_named(tmp_path: Path) -> None:
    fault = "patch_embed bf16 5476x1280x1176: triton_gemm (tma) disagrees with float64: error 0.5, allowed 0.02"
    python = interpreter(tmp_path, writes(REPORT | {"faults": [fault]}))
    with pytest.raises(EnvironmentFault) as caught:
        proof.prove_kernels(python, "gfx1100", SEES_ONE, {})
    assert str(caught.value) == f"kernels: {fault}; please report it"


def test_a_proof_that_holds_is_told_with_its_ranking(tmp_path: Path) -> None:
    found = proof.prove_kernels(interpreter(tmp_path, writes(REPORT)), "gfx1100", SEES_ONE, {})
    text = "\n".join(proof.readable(found))
    assert "In use: linear (none), and triton_gemm tma is faster." in text
    assert "`/k/gfx1100.json`, measured now, in 95 s." in text
    assert "| 1 | linear | 29.1 | 0.001 | in use |" in text
    assert "| 2 | conv3d |  | 0.001 | does not run: no |" in text


@pytest.mark.parametrize(("arch", "torch"), [("cpu", SEES_ONE), ("gfx1100", None), ("gfx1100", {"devices": []})])
def test_without_a_gpu_nothing_is_run_and_that_is_said(arch: str, torch: Any) -> None:
    found = proof.prove_kernels("/no/such/python", arch, torch, {})
    assert "no GPU" in proof.readable(found)[0] and proof.readable(found)[0].startswith("Not proved: ")


def test_variables_are_set_and_unset_before_the_process_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("QUARRY_KEPT", "kept")
    python = interpreter(tmp_path, "json.dump(dict(os.environ), open(sys.argv[4], 'w'))")
    variables = {"ROCR_VISIBLE_DEVICES": None, "MIOPEN_FIND_MODE": "FAST"}
    seen = gpu_python.report_of(python, "proof", variables=variables, seconds=60)
    assert "ROCR_VISIBLE_DEVICES" not in seen
    assert (seen["MIOPEN_FIND_MODE"], seen["QUARRY_KEPT"]) == ("FAST", "kept")


def test_the_kernels_are_importable_there_and_nothing_else_of_ours(tmp_path: Path) -> None:
    look = "import pdfquarry_kernels; json.dump([sys.argv[1:3], sys.path, pdfquarry_kernels.__file__]"
    python = interpreter(tmp_path, f"{look}, open(sys.argv[4], 'w'))")
    arguments, path, file = gpu_python.report_of(python, "proof", variables={"PYTHONPATH": ""}, seconds=60)  # type: ignore[misc]
    assert arguments == ["-m", "pdfquarry_kernels.proof"]
    assert Path(file).parent.parent in map(Path, path)
    assert Path(file).parent.parent.name == "path"  # a folder that holds pdfquarry_kernels alone


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param("sys.exit('ModuleNotFoundError: No module named triton')", "No module named triton", id="error"),
        pytest.param("os.kill(os.getpid(), 11)", "exit code -11", id="segfault"),
        pytest.param("open(sys.argv[4], 'w').write('{')", "exit code 0", id="half a report"),
    ],
)
def test_a_proof_that_breaks_off_is_one_line(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(EnvironmentFault, match=said) as caught:
        proof.prove_kernels(interpreter(tmp_path, body), "gfx1100", SEES_ONE, {})
    assert "\n" not in str(caught.value) and "arch=cpu" in str(caught.value)


def test_a_proof_that_hangs_is_stopped(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "import time; time.sleep(60)")
    with pytest.raises(EnvironmentFault, match="proof: not done after 0 s"):
        gpu_python.report_of(python, "proof", variables={}, seconds=0.3)


def state(
    results: Results, torch: Any, packages: dict[str, Any], arch: str = "cpu", python: str = sys.executable
) -> None:
    results.root.mkdir()
    found = {"packages": packages, "torch": torch, "executable": python}
    whole = {"arch": arch, "gpu_python": found, "proof": {"none": "there is no GPU to prove anything on"}}
    (results.root / "environment.json").write_text(json.dumps(whole))


def test_a_profile_without_torch_says_how_to_get_it(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    with pytest.raises(EnvironmentFault, match="run: snakemake environment"):
        profiling.profile(results, load({}))
    state(results, None, {})
    with pytest.raises(EnvironmentFault, match=r"^profile: torch is not installed in .*; set environment.python"):
        profiling.profile(results, load({}))


OPERATOR = {
    "operator": "aten::convolution",
    "shapes": "1x96x128x92, 96x96x5x5, dilation 3x3",
    "dtype": "Half",
    "calls": 4,
    "us": 26800.0,
    "share": 0.9,
    "kernels": ["naive_conv_ab_nonpacked_fwd_nchw_half_double_half"],
    "floor_us": 176.0,
    "ratio": 152.0,
    "fallback": "naive_conv: MIOpen's naive kernel, its last resort; 152 times its roofline",
}


def profiled(active: bool) -> dict[str, Any]:
    model = {"model": "DocLayout-YOLO", "note": "1024 x 1024", "patch": "DocLayout-YOLO", "fallbacks": 1, "us": 3e4}
    models = [
        model | {"state": "as written", "operators": [OPERATOR]},
        model | {"state": "patched", "operators": [], "fallbacks": 0, "us": 5e3},
        model | {"model": "PP-DocLayoutV2", "patch": "", "state": "left alone", "operators": [OPERATOR]},
    ]
    patch = {"name": "DocLayout-YOLO: dilated convolutions", "active": active, "why": "switched off by X=0"}
    return {
        "device": "Radeon",
        "reduced": False,
        "ratio": 20.0,
        "peaks": {"name": "RX 7900 XTX"},
        "models": models,
        "left_out": [{"model": "Qwen2-VL vision tower", "reason": "ImportError: transformers"}],
        "patches": [patch],
        "layout_models": {"mineru": "2.7.0"},
    }


def test_a_profile_on_a_gpu_tells_what_to_do_about_each_fallback(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    python = interpreter(tmp_path, f"assert sys.argv[5:] == ['--arch', 'gfx1100']\n{writes(profiled(active=True))}")
    state(results, SEES_ONE, {"torch": {}}, arch="gfx1100", python=python)
    said = profiling.profile(results, load({}))
    assert said == "3 forwards profiled on Radeon (gfx1100); 2 operators look like a fallback"
    text = (results.root / "profile" / "profile.md").read_text()
    assert "Patched: yes (DocLayout-YOLO: dilated convolutions, 30.00 ms before and 5.00 ms after)." in text
    assert "No patch of PDF Quarry replaces it" in text
    assert "Left out: Qwen2-VL vision tower: ImportError: transformers" in text
    assert "| 26800 | 90.0% | `naive_conv_ab_nonpacked_fwd_nchw_half_double_half` | 152.0 **fallback** |" in text
    off = profiling.readable(profiled(active=False) | {"arch": "gfx1100", "proof": {"none": "x"}})
    assert "Patched: no: switched off by X=0." in off
