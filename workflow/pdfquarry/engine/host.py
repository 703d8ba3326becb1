"""The engine process: ``python -m pdfquarry.engine.host``. It loads a model, listens on a socket, and reads pages.

A job starts it on the GPU that it has leased, or finds one that another job has left. It greets with one line of JSON;
then pages come in as frames, all at once if need be, and answers go out as they are ready.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Protocol

from pdfquarry.engine import wire
from pdfquarry.engine.pages import EngineDown

# Seconds between two signs of life.
_BEAT = 1.0


class Engine(Protocol):
    """What reads pages."""

    async def read(self, image: Any, regions: list[dict[str, Any]] | None) -> dict[str, Any]:
        """Return what is on a page. Raises EngineDown."""

    def steps(self) -> int:
        """Return a number that grows while the engine works."""

    def state(self) -> dict[str, Any]:
        """Return what goes into the receipt."""

    def verify(self, status: Path) -> None:
        """Look whether the patches are active in the engine's processes. Raises EngineDown."""


class _Vlm:
    def __init__(self, way: Any, most_tokens: int, in_process: bool) -> None:
        from pdfquarry.engine.pages import VlmPages

        self._way, self._in_process = way, in_process
        self._pages = VlmPages(way.client, most_tokens, way.context, way.down, way.at_once)

    async def read(self, image: Any, regions: list[dict[str, Any]] | None) -> dict[str, Any]:
        """Return a page's blocks."""
        return await self._pages.read(image, regions)

    def steps(self) -> int:
        """Steps of the engine and requests that have ended."""
        return int(self._way.steps()) + self._pages.counts["requests"]

    def state(self) -> dict[str, Any]:
        """The way's state and the tokens so far."""
        return {**self._way.state, **self._pages.counts}

    def verify(self, status: Path) -> None:
        """vLLM swallows an error of a plugin, so what its processes wrote is read."""
        from pdfquarry_kernels import vllm_plugin
        from pdfquarry_kernels.arming import mode

        if not self._in_process:
            return
        good, line = vllm_plugin.verdict(vllm_plugin.read_status(status)) if mode() != "off" else (True, "switched off")
        self._way.state["patches"] = line
        print(f"patches: {line}", flush=True)
        if not good:
            raise EngineDown(f"the patches are not active: {line}")


class _Detector:
    def __init__(self, weights: str) -> None:
        import torch

        from pdfquarry.engine.detector import Batcher, Detector

        # The masks leave one card; PyTorch for ROCm calls it cuda, too.
        self._detector = Detector(Path(weights), "cuda:0" if torch.cuda.is_available() else "cpu")
        self._batcher = Batcher(self._detector)
        self._pages = 0

    async def read(self, image: Any, regions: list[dict[str, Any]] | None) -> dict[str, Any]:
        """Return the regions of a page as its blocks."""
        started = time.perf_counter()
        found = await self._batcher.regions(image)
        self._pages += 1
        seconds = {"layout": time.perf_counter() - started}
        return {"blocks": found, "trouble": None, "requests": [], "seconds": seconds}

    def steps(self) -> int:
        """Pages so far."""
        return self._pages

    def state(self) -> dict[str, Any]:
        """What the detector says of itself."""
        return dict(self._detector.state())

    def verify(self, status: Path) -> None:
        """Its blocks are counted when it is loaded (``state``)."""


async def load(job: dict[str, Any]) -> Engine:
    """Return the engine that a job wants (``engines.EngineJob.load``)."""
    if job["kind"] == "doclayout-yolo":
        return _Detector(job["model"])
    from pdfquarry.engine.clients import open_way

    way = await open_way(job["kind"], job["model"], job["arguments"], job["known"], job["servers"], job["patience"])
    return _Vlm(way, job["max_tokens"], in_process=job["kind"] == "vllm")


class Host:
    """Serves one engine.

    Args:
        engine: reads the pages.
        digest: of the settings that it was started with.
        linger: seconds without a connection after which it ends; 0 never, since its job ends it.
    """

    def __init__(self, engine: Engine, digest: str, linger: float) -> None:
        self._engine, self._digest, self._linger = engine, digest, linger
        self._connections = 0
        self._idle_since = time.monotonic()

    async def serve(self, path: Path) -> None:
        """Listen until idle for too long."""
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._connection, path=path, limit=2**25)
        async with server:
            while not self._linger or self._connections or time.monotonic() - self._idle_since < self._linger:
                await asyncio.sleep(_BEAT)
        path.unlink(missing_ok=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        pages: set[asyncio.Task[None]] = set()
        beats = asyncio.create_task(self._beats(writer))
        try:
            greeting = {"digest": self._digest, "pid": os.getpid(), "state": self._engine.state()}
            writer.write(json.dumps(greeting, default=str).encode() + b"\n")
            while True:
                header, payload = await wire.read(reader)
                page = asyncio.create_task(self._page(header, payload, writer))
                pages.add(page)
                page.add_done_callback(pages.discard)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the job is done, or gone
        finally:
            beats.cancel()
            for page in pages:
                page.cancel()  # the engine drops the requests of a job that is gone
            writer.close()
            self._connections -= 1
            self._idle_since = time.monotonic()

    async def _page(self, header: dict[str, Any], payload: bytes, writer: asyncio.StreamWriter) -> None:
        from PIL import Image

        started = time.perf_counter()
        try:
            size = (header["width"], header["height"])
            image = Image.frombuffer("RGB", size, payload, "raw", "RGB", 0, 1)  # no copy
            answer = await self._engine.read(image, header["regions"])
        except EngineDown as down:
            _die(str(down))
        except Exception as error:  # a bug here or in the library costs this page
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        answer |= {"id": header["id"], "wait": time.perf_counter() - started}
        await self._send(writer, answer)

    async def _beats(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(_BEAT)
            await self._send(writer, {"steps": self._engine.steps(), "state": self._engine.state()})

    async def _send(self, writer: asyncio.StreamWriter, header: dict[str, Any]) -> None:
        try:
            writer.writelines(wire.pack(header))
            await writer.drain()
        except ConnectionError:
            pass  # the reading side finds out, too


def _die(words: str) -> None:
    """End the process at once, its children with it; the job starts another."""
    print(f"engine down: {' '.join(words.split())}", flush=True)  # which the job looks for (engine_process)
    os._exit(3)


async def run(options: argparse.Namespace) -> None:
    """Load the engine, verify the patch, serve."""
    os.environ["PDFQUARRY_ENGINE"] = str(os.getpid())  # for the plugin, in the processes that vLLM starts
    status = Path(os.environ["PDFQUARRY_PATCHES_STATUS"])
    shutil.rmtree(status, ignore_errors=True)
    job = json.loads(options.job)
    engine = await load(job)
    engine.verify(status)
    print("engine ready", flush=True)
    await Host(engine, options.digest, options.linger).serve(Path(options.socket))


def main() -> int:
    """Run the process; return its exit code."""
    parser = argparse.ArgumentParser(prog="pdfquarry.engine.host", description=__doc__)
    parser.add_argument("--job", required=True, help="what to load, in JSON (engines.EngineJob.load)")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--linger", type=float, required=True)
    parser.add_argument("--digest", required=True)
    options = parser.parse_args()
    try:
        asyncio.run(run(options))
    except EngineDown as down:
        _die(str(down))
    except Exception as error:
        traceback.print_exc()
        _die(f"it does not start: {type(error).__name__}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
