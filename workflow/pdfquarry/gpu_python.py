"""Runs a module of ``pdfquarry_kernels`` in the interpreter for work on GPUs, and reads the report that it writes."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdfquarry.errors import EnvironmentFault

# Beside workflow/ in the repository, beside this package where both are installed.
_PLACES = tuple(
    folder / "pdfquarry_kernels"
    for folder in (Path(__file__).resolve().parents[2] / "kernels", Path(__file__).resolve().parents[1])
)


def report_of(
    python: str, module: str, *arguments: str, variables: Mapping[str, str | None], seconds: float
) -> dict[str, Any]:
    """Return the JSON report of ``python -m pdfquarry_kernels.<module> --json FILE``, run in a process of its own.

    Args:
        python: the interpreter; it needs torch, and nothing of PDF Quarry.
        module: its name in ``pdfquarry_kernels``.
        arguments: further ones.
        variables: set (a text) or unset (None) before the process starts.
        seconds: after which it is stopped.

    Raises EnvironmentFault: it doesn't start, ends without a report, or takes too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Alone in a folder: a whole site-packages on the path would hide the interpreter's own packages.
        link, written = Path(folder) / "path" / "pdfquarry_kernels", Path(folder) / "report.json"
        link.parent.mkdir()
        found = [place for place in _PLACES if place.is_dir()]
        if not found:
            raise EnvironmentFault(f"pdfquarry_kernels: neither at {_PLACES[0]} nor at {_PLACES[1]}; get it all again")
        link.symlink_to(found[0])
        environ = {name: text for name, text in os.environ.items() if variables.get(name, "") is not None}
        environ |= {name: text for name, text in variables.items() if text is not None}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(link.parent), environ.get("PYTHONPATH")]))
        command = [python, "-m", f"pdfquarry_kernels.{module}", "--json", str(written), *arguments]
        try:
            ended = subprocess.run(
                command,
                env=environ,
                timeout=seconds,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                preexec_fn=_end_with_parent,
            )
        except OSError as error:
            raise EnvironmentFault(f"environment.python: {python} does not run ({type(error).__name__})") from error
        except subprocess.TimeoutExpired as error:
            raise EnvironmentFault(f"{module}: not done after {seconds:.0f} s in {python}; is the GPU busy?") from error
        print(ended.stdout, file=sys.stderr, end="", flush=True)
        try:
            report: dict[str, Any] = json.loads(written.read_bytes())
        except (OSError, ValueError) as error:
            last = (ended.stdout.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
            raise EnvironmentFault(
                f"{module}: ended without a report in {python}: {last[:300]}; mend it there, or set arch=cpu"
            ) from error
        return report


def _end_with_parent() -> None:
    """Let the kernel end the process with this one, so that a killed run leaves no GPU at work."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
