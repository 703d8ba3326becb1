"""uv, the program that builds the managed environment: where it is, running it, and its complaints in a line."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path

from pdfquarry.errors import EnvironmentFault

# Variables that would let uv take another torch than the one that is pinned.
_DROPPED = frozenset({"UV_TORCH_BACKEND", "UV_INDEX_STRATEGY", "UV_OVERRIDE"})
# What uv says, and what to do; the first that fits.
_REMEDIES = (
    (r"no space left", "free disk space, there and in uv's cache (uv cache dir)"),
    (
        r"no interpreter found|python.{0,40}download",
        "put a Python 3.12 on PATH, or let uv fetch one (uv python install 3.12)",
    ),
    (
        r"failed to fetch|request failed|connect|dns|timed? ?out|certificate|tunnel",
        "check the network and HTTPS_PROXY; UV_DEFAULT_INDEX names a mirror of the ordinary index",
    ),
    (r"no solution found|unsatisfiable", "an index lacks what is pinned, or has nothing for this system"),
)


def find() -> str:
    """Return the uv beside this Python, or else the one on PATH. Raises EnvironmentFault when there is none."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("uv")
    if not found:
        raise EnvironmentFault(f"environment.create needs uv: {sys.executable} -m pip install uv")
    return found


def run(*command: str | Path) -> None:
    """Run uv and pass on what it says. Raises EnvironmentFault, its complaint in a line, when it fails."""
    environ = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    environ.setdefault("UV_HTTP_TIMEOUT", "300")  # seconds; wheels of a GB come slowly at times
    said: deque[str] = deque(maxlen=60)
    try:
        with subprocess.Popen(
            command,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=_end_with_parent,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                said.append(line)
    except OSError as error:
        raise EnvironmentFault(f"{command[0]} does not run ({error.strerror}): pip install uv") from error
    if process.returncode:
        step = " ".join(itertools.takewhile(lambda word: word[0] != "-", map(str, command[1:])))
        raise EnvironmentFault(explain(step, list(said), process.returncode))


def _end_with_parent() -> None:
    """In the child: let the kernel kill it when we are gone, so that the next build has the folder for itself."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def explain(step: str, said: list[str], code: int) -> str:
    """Return uv's complaint in a line, with the remedy."""
    lines = [" ".join(line.split()) for line in said if line.strip()]
    starts = [number for number, line in enumerate(lines) if re.match(r"error:|warning: A managed Python", line)]
    text = " ".join(lines[starts[0] :] if starts else lines[-3:])
    remedy = next((remedy for sign, remedy in _REMEDIES if re.search(sign, text, flags=re.I)), "see uv's words above")
    return f"uv {step} ended with {code}: {text[:300] or 'no word'}: {remedy}"
