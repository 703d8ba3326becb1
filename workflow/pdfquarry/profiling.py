"""``snakemake profile``: where the time of one vision forward and one layout forward goes, and what to do about it."""

from __future__ import annotations

import json
import os
from typing import Any

from pdfquarry import files, gpu_python, proof
from pdfquarry.arch import job_variables
from pdfquarry.errors import EnvironmentFault
from pdfquarry.results import Results
from pdfquarry.settings import Settings

SECONDS = 1200


def profile(results: Results, settings: Settings) -> str:
    """Profile in the interpreter for work on GPUs, write profile.json and profile.md; return the headline.

    Raises EnvironmentFault: no environment.json, no torch in that interpreter, or the profile breaks off.
    """
    try:
        state = json.loads((results.root / "environment.json").read_bytes())
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"{results.root}/environment.json: missing; run: snakemake environment") from error
    python, arch = state["gpu_python"]["executable"], state["arch"]
    if "torch" not in state["gpu_python"]["packages"]:
        raise EnvironmentFault(
            f"profile: torch is not installed in {python}; set environment.python to an interpreter that has it, "
            f"or run: {python} -m pip install torch triton transformers"
        )
    gpu = arch != "cpu" and bool(state["gpu_python"]["torch"]["devices"])
    variables = job_variables(arch, settings.environment.variables, os.environ) if gpu else {}
    found = gpu_python.report_of(
        python, "profiling", "--arch", arch if gpu else "cpu", variables=variables, seconds=SECONDS
    )
    report = found | {"arch": arch, "proof": state["proof"]}
    files.write_json(results.root / "profile" / "profile.json", report)
    files.write(results.root / "profile" / "profile.md", readable(report))
    return headline(report)


def headline(report: dict[str, Any]) -> str:
    """Return in a line what was profiled and how many operators look like a fallback."""
    where = "the CPU, with reduced models" if report["reduced"] else f"{report['device']} ({report['arch']})"
    flagged = sum(model["fallbacks"] for model in report["models"])
    return f"{len(report['models'])} forwards profiled on {where}; {flagged} operators look like a fallback"


def readable(report: dict[str, Any]) -> str:
    """Return the profile for a person, as Markdown."""
    lines = ["# Profile", "", headline(report) + ".", ""]
    if report["reduced"]:
        lines += [
            "**No GPU was used.** The models are reduced and ran on the CPU, so that you see what the report looks "
            "like. It says nothing about a GPU, and nothing is flagged. The patched dilated blocks run the same "
            "operators as before, since Triton has no kernels for the CPU.",
            "",
        ]
    lines += ["| model | state | ms | fallbacks | |", "| --- | --- | --- | --- | --- |"]
    for model in report["models"]:
        ms = f"{model['us'] / 1e3:.2f}"
        lines.append(f"| {model['model']} | {model['state']} | {ms} | {model['fallbacks']} | {model['note']} |")
    lines += [f"\nLeft out: {left['model']}: {left['reason']}" for left in report["left_out"]]
    versions = ", ".join(f"{name} {found}" for name, found in report["layout_models"].items() if found)
    lines += ["", f"Weights are random: they cost what trained ones do. Installed: {versions or 'none of the models'}."]
    lines += ["", "## What looks like a fallback", "", *_flags(report)]
    lines += ["", "## Implementations, ranked", "", *proof.readable(report["proof"])]
    for model in report["models"]:
        lines += ["", f"## {model['model']}, {model['state']}", "", f"{model['note']}.", ""]
        lines += ["| operator | tensors | type | calls | us | share | kernel | times its roofline |"]
        lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
        for row in model["operators"]:
            ratio = "" if row["ratio"] is None else f"{row['ratio']:.1f}"
            cells = [row["operator"], row["shapes"], row["dtype"], row["calls"], f"{row['us']:.0f}"]
            cells += [f"{row['share']:.1%}", _kernel(row), ratio + " **fallback**" * bool(row["fallback"])]
            lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _kernel(row: dict[str, Any]) -> str:
    return f"`{row['kernels'][0][:60]}`" if row["kernels"] else ""


def _flags(report: dict[str, Any]) -> list[str]:
    """A line for each flagged operator: what, why, and the remedy."""
    peaks = report["peaks"]
    against = f"the roofline of {peaks['name']}" if peaks else "no roofline: a CPU has none here"
    lines = [f"A convolution more than {report['ratio']:.0f} times above its floor ({against}), or one by name.", ""]
    for model in report["models"]:
        for row in model["operators"]:
            if row["fallback"]:
                what = f"{model['model']}, {model['state']}: {row['operator']} {row['shapes']}"
                lines.append(f"* {what}, {row['us'] / 1e3:.2f} ms ({row['fallback']}). {_remedy(model, report)}")
    return lines if len(lines) > 2 else [*lines, "None does."]


def _remedy(model: dict[str, Any], report: dict[str, Any]) -> str:
    """What to do about a fallback in a model."""
    if model["state"] != "as written":
        return (
            "No patch of PDF Quarry replaces it: try MIOPEN_FIND_MODE=NORMAL or another release of ROCm, and please "
            "report it with this file."
        )
    patched = next((o for o in report["models"] if o["model"] == model["model"] and o["state"] == "patched"), None)
    gain = f", {model['us'] / 1e3:.2f} ms before and {patched['us'] / 1e3:.2f} ms after" if patched else ""
    patch = next((one for one in report["patches"] if one["name"].startswith(model["patch"])), None)
    if patch and patch["active"]:
        return f"Patched: yes ({patch['name']}{gain})."
    why = f": {patch['why']}" if patch else ""
    return f"Patched: no{why}. The patch{gain}; python -m pdfquarry patches says what switches it on."
