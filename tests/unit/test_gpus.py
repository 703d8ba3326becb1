"""GPUs are found by whatever tool is there, and what hides or contradicts them is told."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pdfquarry import environment, gpus, inspect_python
from pdfquarry.environment import choose_arch
from pdfquarry.errors import EnvironmentFault
from pdfquarry.gpus import Gpu

RECORDED = Path(__file__).resolve().parents[1] / "resources" / "gpus"
XTX = Gpu(0, "gfx1100", "Radeon RX 7900 XTX", 24560, None, "rocminfo")
IGPU = Gpu(1, "gfx1036", "AMD Radeon Graphics", 512, None, "rocminfo")


def read(name: str) -> str:
    return (RECORDED / name).read_text()


def test_rocminfo_names_a_card_and_the_gpu_in_the_cpu() -> None:
    found = gpus.from_rocminfo(read("rocminfo-7900xtx-and-igpu.txt"))
    assert found == [XTX, IGPU]
    assert [gpu.integrated for gpu in found] == [False, True] and gpus.usable(found) == [XTX]
    assert gpus.usable([IGPU]) == [IGPU]


def test_amd_smi_is_read_in_its_older_and_newer_form() -> None:
    two = gpus.from_amd_smi(read("amd-smi-two-w7900.json"))
    assert [(gpu.index, gpu.arch, gpu.memory_mb) for gpu in two] == [(0, "gfx1100", 49136), (1, "gfx1100", 49136)]
    mixed = gpus.from_amd_smi(read("amd-smi-7-mixed.json"))
    assert [(gpu.arch, gpu.memory_mb) for gpu in mixed] == [("gfx1201", 16304), ("gfx1100", 20464)]


def test_the_kernel_driver_is_read_without_any_tool(tmp_path: Path) -> None:
    for node, version, size in (("0", 0, 0), ("1", 110000, 25753026560), ("2", 90402, 68702699520), ("10", 110501, 0)):
        bank = tmp_path / node / "mem_banks" / "0"
        bank.mkdir(parents=True)
        (tmp_path / node / "properties").write_text(
            f"cpu_cores_count 0\nsimd_count 192\ngfx_target_version {version}\n"
        )
        (bank / "properties").write_text(f"heap_type 1\nsize_in_bytes {size}\nflags 0\n")
    found = gpus.from_kfd(tmp_path)
    assert [(gpu.index, gpu.arch) for gpu in found] == [(0, "gfx1100"), (1, "gfx942"), (2, "gfx1151")]
    assert found[0].memory_mb == 24560


def test_nvidia_cards_are_named_by_their_capability() -> None:
    (gpu,) = gpus.from_nvidia_smi(read("nvidia-smi-h200.csv"))
    assert gpu.arch == "sm_90" and "H200" in gpu.name and gpu.memory_mb > 140_000 and gpu.free_mb > 100_000


def test_torch_is_asked_first_and_tools_only_when_it_names_nothing(tmp_path: Path) -> None:
    def tools(command: list[str]) -> str | None:
        return {"rocminfo": read("rocminfo-7900xtx-and-igpu.txt"), "nvidia-smi": read("nvidia-smi-h200.csv")}.get(
            command[0]
        )

    report = json.loads(read("torch-h200.json"))["torch"]
    assert [gpu.source for gpu in gpus.find(report, tools, tmp_path)] == ["torch"]
    assert gpus.find(report, tools, tmp_path)[0].arch == "sm_90"
    assert gpus.find({"devices": []}, tools, tmp_path) == [XTX, IGPU]
    assert gpus.find(None, lambda command: None, tmp_path) == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "No AMD GPUs detected", "*******\nAgent 1\n*******\n  Name: x\n", "a,b\n1,2,3"]
)
def test_nonsense_from_a_tool_names_no_gpu(text: str) -> None:
    assert gpus.from_rocminfo(text) == gpus.from_amd_smi(text) == gpus.from_nvidia_smi(text) == []


def test_a_tool_that_fails_or_is_missing_is_as_if_it_said_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.run_tool(["rocminfo"]) is None
    tool = tmp_path / "rocminfo"
    tool.write_text(f"#!{sys.executable}\nprint('half an answer')\nraise SystemExit(1)\n")
    tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
    assert gpus.run_tool(["rocminfo"]) is None
    tool.write_text(f"#!{sys.executable}\nprint('an answer')\n")
    assert gpus.run_tool(["rocminfo"]) == "an answer\n"
    tool.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    monkeypatch.setattr(gpus, "_PATIENCE_S", 0.5)
    assert gpus.run_tool(["rocminfo"]) is None


@pytest.mark.parametrize(
    ("masks", "told"),
    [
        ({}, ""),
        ({"HIP_VISIBLE_DEVICES": "1"}, ""),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}, ""),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, "unset CUDA_VISIBLE_DEVICES"),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, ""),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, "leaves 1 GPUs, numbered from 0"),
        ({"ROCR_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "2"}, "CUDA_VISIBLE_DEVICES=2 asks for number 2"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-3f9a7c5b1d2e4f60"}, ""),
    ],
)
def test_masks_that_contradict_are_told_with_the_remedy(masks: dict[str, str], told: str) -> None:
    problems = list(gpus.mask_problems(masks))
    assert len(problems) == bool(told) and told in "".join(problems)


def test_auto_takes_the_cards_of_most_memory_and_no_gpu_is_the_cpu() -> None:
    assert choose_arch("auto", []) == "cpu"
    assert choose_arch("auto", [XTX, IGPU]) == "gfx1100"
    assert choose_arch("auto", [IGPU]) == "gfx1036"
    assert choose_arch("auto", gpus.from_amd_smi(read("amd-smi-7-mixed.json"))) == "gfx1100"
    assert choose_arch("cpu", [XTX]) == "cpu"


def test_another_card_than_the_one_expected_is_an_error_that_names_both() -> None:
    assert choose_arch("gfx1036", [XTX, IGPU]) == "gfx1036"
    with pytest.raises(EnvironmentFault, match="gfx1201 was asked for, and this machine has gfx1036, gfx1100"):
        choose_arch("gfx1201", [XTX, IGPU])
    with pytest.raises(EnvironmentFault, match="gfx1100 was asked for, and this machine has no GPU"):
        choose_arch("gfx1100", [])


def test_an_interpreter_is_looked_at_from_inside() -> None:
    report = environment.inspect(sys.executable)
    assert report["executable"] == sys.executable and set(report["packages"]) <= set(environment.GPU_PACKAGES)
    script = Path(inspect_python.__file__)
    ended = subprocess.run(
        [sys.executable, "-I", script, "pytest", "no-such"], capture_output=True, text=True, check=True
    )
    packages = json.loads(ended.stdout)["packages"]
    assert list(packages) == ["pytest"] and os.path.isdir(packages["pytest"]["location"])


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/false"])
def test_an_interpreter_that_does_not_run_is_named(python: str) -> None:
    with pytest.raises(EnvironmentFault, match=f"environment.python: {python} does not run"):
        environment.inspect(python)


def test_the_environment_reads_well(tmp_path: Path) -> None:
    state = dict.fromkeys(("pdfquarry", "python", "platform", "cores", "free_disk_mb", "arch", "engine"), "x")
    state |= {"packages": {"snakemake": "9"}, "variables": {"A": "1"}, "engine_arguments": {"b": True}}
    state["proof"] = {"none": "there is no GPU to prove anything on"}
    state["gpu_python"] = {"packages": {"vllm": {"version": "0.20", "location": "/v"}}}
    text = environment.readable(state, [XTX, IGPU])
    assert "| 0 | gfx1100 | Radeon RX 7900 XTX | 24560 |  | rocminfo |  |" in text
    assert (
        "part of the CPU" in text
        and "of different kinds" in text
        and "| vllm | 0.20 | /v |" in text
        and "| A | 1 |" in text
    )
