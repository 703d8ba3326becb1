"""The kernels' proof on the GPU at hand: run, judged, and written for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdfquarry import gpu_python
from pdfquarry.errors import EnvironmentFault

# Some two minutes, and three more on a card that nobody has tuned; a fallback of the library may take seconds a call.
SECONDS = 1200


def prove_kernels(
    python: str, arch: str, torch: dict[str, Any] | None, variables: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return the report of ``pdfquarry_kernels.proof`` on the GPU, or why there is nothing to prove (``none``).

    Args:
        python: the interpreter for work on GPUs.
        arch: what the run works on.
        torch: that interpreter's view, as ``inspect_python`` tells it.
        variables: of a job on the GPU.

    Raises EnvironmentFault: a kernel disagrees with its reference, what is in use doesn't run, or the proof breaks off.
    """
    if arch == "cpu":
        return {"none": "there is no GPU to prove anything on"}
    if not torch or not torch["devices"]:
        return {"none": f"torch in {python} sees no GPU, so there is nothing that could run kernels"}
    report = gpu_python.report_of(python, "proof", "--arch", arch, variables=variables, seconds=SECONDS)
    if report["faults"]:
        raise EnvironmentFault("\n".join(f"kernels: {fault}; please report it" for fault in report["faults"]))
    return report


def readable(proof: dict[str, Any]) -> list[str]:
    """Return the proof as lines of Markdown, without a heading."""
    if "none" in proof:
        return [f"Not proved: {proof['none']}."]
    tuned = proof["tuned"]
    lines = [
        f"What ran on {proof['device']} ({proof['arch']}) agrees with float64 within the allowed error (of the norm).",
        "",
    ]
    if tuned.get("path"):
        when = f"measured now, in {tuned['seconds']} s" if tuned["made_now"] else "measured before"
        lines.append(f"Configuration of this card: `{tuned['path']}`, {when}. {tuned['note']}".rstrip())
    else:
        lines.append(f"This card has no measured configuration: {tuned['note']}")
    for case in proof["cases"]:
        shape = " x ".join(map(str, case["shape"]))
        judged = "the fastest measured" if case["chosen_is_best"] else f"and {case['best']} is faster"
        lines += ["", f"**{case['op']}**, {case['dtype']}, {shape}; allowed error {case['tolerance']}.", ""]
        lines.append(f"In use: {case['chosen']} ({case['evidence']}), {judged}.")
        if case["floor_us"]:
            lines.append(f"The card's peaks allow {case['floor_us']} us.")
        lines += ["", "| rank | implementation | us | error | |", "| --- | --- | --- | --- | --- |"]
        for rank, row in enumerate(case["rows"], 1):
            name = row["implementation"] + f" ({row['kernel']})" * bool(row["kernel"])
            note = f"does not run: {row['failure']}" if row["failure"] else "in use" if row["in_use"] else ""
            lines.append(f"| {rank} | {name} | {_number(row['us'])} | {_number(row['error'])} | {note} |")
    return lines


def _number(value: float | None) -> str:
    return "" if value is None else str(value)
