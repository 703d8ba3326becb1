"""The engine process greets, reads pages side by side, drops what nobody waits for, and ends when it is not needed."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pdfquarry.engine import wire
from pdfquarry.engine.host import Host

PIXELS = bytes(3 * 4 * 5)


class Engine:
    """Answers after a while, and knows which pages were called off."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.begun, self.ended, self.dropped = seconds, 0, 0, 0

    async def read(self, image: Any, regions: list[dict[str, Any]] | None) -> dict[str, Any]:
        self.begun += 1
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.dropped += 1
            raise
        self.ended += 1
        return {"blocks": [{"size": image.size, "regions": regions}]}

    def steps(self) -> int:
        return self.ended

    def state(self) -> dict[str, Any]:
        return {"begun": self.begun}

    def verify(self, status: Path) -> None:
        pass


@asynccontextmanager
async def hosted(engine: Engine, linger: float = 0) -> AsyncIterator[tuple[Path, asyncio.Task[None]]]:
    with tempfile.TemporaryDirectory(prefix="q") as folder:
        path = Path(folder) / "s"
        task = asyncio.create_task(Host(engine, "d1", linger).serve(path))
        while not path.exists():
            await asyncio.sleep(0.01)
        yield path, task
        task.cancel()


async def connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, dict[str, Any]]:
    reader, writer = await asyncio.open_unix_connection(path)
    return reader, writer, json.loads(await reader.readline())


async def answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    while True:
        header, _ = await wire.read(reader)
        if "id" in header:
            return header


def page(number: int) -> bytes:
    return b"".join(wire.pack({"id": number, "width": 4, "height": 5, "regions": [{"n": number}]}, PIXELS))


def test_pages_are_read_side_by_side_and_each_answer_is_its_pages() -> None:
    async def run() -> None:
        async with hosted(Engine(0.3)) as (path, _):
            reader, writer, greeting = await connect(path)
            assert greeting["digest"] == "d1" and greeting["state"] == {"begun": 0}
            started = time.monotonic()
            writer.write(b"".join(page(number) for number in range(20)))
            found = [await answer(reader) for _ in range(20)]
            assert time.monotonic() - started < 3, "one after the other they would take six seconds"
            assert {one["id"]: one["blocks"][0]["regions"][0]["n"] for one in found} == {n: n for n in range(20)}
            assert found[0]["blocks"][0]["size"] == [4, 5]

    asyncio.run(run())


def test_the_pages_of_a_job_that_is_gone_are_dropped() -> None:
    async def run() -> None:
        engine = Engine(60)
        async with hosted(engine) as (path, _):
            _, writer, _ = await connect(path)
            writer.write(page(1) + page(2))
            while engine.begun < 2:
                await asyncio.sleep(0.01)
            writer.close()
            while engine.dropped < 2:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_it_ends_when_nobody_needs_it_and_not_while_somebody_does() -> None:
    async def run() -> None:
        async with hosted(Engine(), linger=1.5) as (path, task):
            _, writer, _ = await connect(path)
            await asyncio.sleep(3)
            assert not task.done(), "somebody is connected"
            writer.close()
            await asyncio.wait_for(task, 20)
            assert not path.exists()

    asyncio.run(run())


@given(st.lists(st.tuples(st.dictionaries(st.text(), st.text()), st.binary(max_size=300)), max_size=5))
def test_what_is_sent_is_what_arrives(frames: list[tuple[dict[str, str], bytes]]) -> None:
    async def run() -> None:
        reader = asyncio.StreamReader()
        for header, payload in frames:
            reader.feed_data(b"".join(wire.pack(header, payload)))
        reader.feed_eof()
        assert [await wire.read(reader) for _ in frames] == frames

    asyncio.run(run())
