"""A real engine host around an engine that needs no model: it answers by the colour of a page's top left corner.

White pages are read: one text block that names the picture's size. A coloured corner (``pdfs.signed_pdf``) makes it
misbehave: red kills the process, blue hangs it, lime raises an error, yellow finds no regions, cyan loops in a block.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pdfquarry.engine.host import Host

COLOURS = {
    "red": (255, 0, 0),
    "blue": (0, 0, 255),
    "lime": (0, 255, 0),
    "yellow": (255, 255, 0),
    "cyan": (0, 255, 255),
}


class FakeEngine:
    """Counts steps and reads pages; see the module."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._pages = seconds, 0

    async def read(self, image: Any, regions: list[dict[str, Any]] | None) -> dict[str, Any]:
        """Answer a page."""
        corner = image.getpixel((8, 8))
        name = next((name for name, colour in COLOURS.items() if colour == corner), "")
        if name == "red":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "blue":
            time.sleep(3600)
        if name == "lime":
            raise ValueError("a lime page")
        await asyncio.sleep(self._seconds)
        self._pages += 1
        found = [] if regions is None else regions
        text = f"{image.width} by {image.height}, {len(found)} regions"
        block = {"type": "text", "bbox": [0.1, 0.05, 0.9, 0.95], "angle": 0, "content": text, "merge_prev": False}
        if name == "cyan":
            block |= {"trouble": "loop", "content": "again and again and"}
        request = {"step": "content", "kind": "text", "trouble": None, "tokens_in": 7, "tokens_out": 5, "tries": 1}
        return {
            "blocks": [] if name == "yellow" else [block],
            "trouble": "no_regions" if name == "yellow" else None,
            "requests": [request | {"finish": "stop"}],
            "seconds": {"layout": 0.0, "content": self._seconds},
        }

    def steps(self) -> int:
        """Pages so far."""
        return self._pages

    def state(self) -> dict[str, Any]:
        """What it is."""
        return {"patches": "a fake engine has none", "pages": self._pages}

    def verify(self, status: Path) -> None:
        """Nothing to verify."""


def main() -> None:
    """Run it as engines are run."""
    parser = argparse.ArgumentParser()
    for name in ("--job", "--socket", "--digest"):
        parser.add_argument(name, default="")
    parser.add_argument("--linger", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=0.01)
    options = parser.parse_args()
    host = Host(FakeEngine(options.seconds), options.digest, options.linger)
    print("engine ready", flush=True)
    asyncio.run(host.serve(Path(options.socket)))


if __name__ == "__main__":
    sys.exit(main())
