"""Looks at an interpreter from inside and prints what it has, as JSON. Run by path, with nothing but Python itself.

/opt/venv/bin/python workflow/pdfquarry/inspect_python.py torch vllm ...
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import sys
from typing import Any


def packages(names: list[str]) -> dict[str, dict[str, str]]:
    """Return name -> version and folder of each distribution that is installed."""
    found = {}
    for name in names:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = {"version": distribution.version, "location": str(distribution.locate_file(""))}
    return found


def torch_report() -> dict[str, Any] | None:
    """Return torch's view of the GPUs, or None without torch; a torch that doesn't import says why."""
    if importlib.util.find_spec("torch") is None:
        return None
    try:
        import torch

        devices = []
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            # On CUDA gcnArchName is there as well, and holds the card's name (seen with torch 2.11 on an H200).
            gcn = properties.gcnArchName.split(":")[0] if torch.version.hip else ""
            arch = gcn or f"sm_{properties.major}{properties.minor}"
            memory = {
                "memory_mb": properties.total_memory // 2**20,
                "free_mb": torch.cuda.mem_get_info(index)[0] // 2**20,
            }
            devices.append({"arch": arch, "name": properties.name, **memory})
        return {"hip": torch.version.hip, "cuda": torch.version.cuda, "devices": devices}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300], "devices": []}


if __name__ == "__main__":
    report: dict[str, Any] = {"python": platform.python_version(), "executable": sys.executable}
    report["packages"] = packages(sys.argv[1:])
    report["torch"] = torch_report()
    print(json.dumps(report))
