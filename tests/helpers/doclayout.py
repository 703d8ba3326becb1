"""The real doclayout-yolo 0.0.4 in a process of its own: fetched once, and run beside the packages that are here.

Some 80 MB are fetched, without dependencies: torch, numpy and whatever else is here already are used as they are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fetched import installed

ROOT = Path(__file__).parents[2]
# What it imports, and does not find here. Beside OpenCV and torchvision it is for plots and a line of its log.
NEEDED = (
    *("opencv-python-headless", "matplotlib", "contourpy", "cycler", "fonttools", "kiwisolver", "pyparsing"),
    "py-cpuinfo",
)


def python_path() -> str:
    """For ``PYTHONPATH`` of a process that imports it; fetches at the first call."""
    import torch

    release = torch.__version__.split("+")[0].split(".")
    vision = f"torchvision==0.{int(release[1]) + 15}.{release[2]}"  # torch 2.n goes with torchvision 0.(n + 15)
    folder = installed("doclayout-yolo==0.0.4", *NEEDED, vision)
    return os.pathsep.join(map(str, [ROOT / "kernels", ROOT / "workflow", ROOT / "tests/helpers", folder]))


def run(script: Path, folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script that may import it, in ``folder``, where its settings go as well."""
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env=os.environ | {"PYTHONPATH": python_path(), "YOLO_CONFIG_DIR": str(folder)} | environ,
        cwd=folder,
        capture_output=True,
        text=True,
    )


def declare_torchvision_operators() -> None:
    """torchvision's Python half asks for operators that its compiled half, missing beside CPU torch, would declare."""
    import torch

    global _library  # operators live as long as what declared them
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            _library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
