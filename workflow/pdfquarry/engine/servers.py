"""Several OpenAI-compatible servers as one: the least loaded first, and a dead one's requests go to the others."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pdfquarry.engine.pages import EngineDown

# Seconds until a server that failed is asked again: doubled each time, up to the cap.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
# What a proxy, an overloaded server or one that is starting says; the request is not to blame.
_BUSY = {408, 429, 500, 502, 503, 504}
# No key, no right, no such model: true of every request, so none is to be asked in vain.
_CLOSED = {401, 403, 404, 407}


@dataclass(slots=True)
class Server:
    """One server: its client once it answered, requests in flight, and when it may be asked again."""

    url: str
    client: Any = None
    load: int = 0
    failures: int = 0
    again_at: float = 0.0


class Servers:
    """Stands in for mineru-vl-utils' client of one server.

    Args:
        urls: of the servers.
        connect: makes a client of a URL, blocking; raises when the server doesn't answer, or has no such model.
        patience: seconds that no server may answer before this is down.
    """

    def __init__(self, urls: list[str], connect: Callable[[str], Any], patience: float) -> None:
        self._servers = [Server(url) for url in urls]
        self._connect, self._patience = connect, patience
        self._last = time.monotonic()
        self.answered = 0

    async def aio_predict(self, image: Any, prompt: str = "", sampling_params: Any = None, priority: Any = None) -> str:
        """Return a server's answer. Raises EngineDown when none answers, or what a server says against the request."""
        while True:
            server = await self._pick()
            server.load += 1
            try:
                client = await self.client_of(server)
                text: str = await client.aio_predict(image, prompt, sampling_params, priority)
            except Exception as error:
                if _status(error) in _CLOSED:
                    raise EngineDown(f"{server.url}: {error}") from error
                if not _servers_fault(error):
                    self._good(server)
                    raise
                self._bad(server, error)
            else:
                self._good(server)
                return text
            finally:
                server.load -= 1

    async def any_client(self) -> Any:
        """Return the client of a server that answers. Raises EngineDown when none does."""
        while True:
            server = await self._pick()
            try:
                return await self.client_of(server)
            except Exception as error:
                if _status(error) in _CLOSED:
                    raise EngineDown(f"{server.url}: {error}") from error
                if not _servers_fault(error):
                    raise
                self._bad(server, error)

    async def client_of(self, server: Server) -> Any:
        """Return a server's client, made at its first use. Raises EngineDown for one that has no such model."""
        if server.client is None:
            try:
                server.client = await asyncio.to_thread(self._connect, server.url)
            except ValueError as error:
                raise EngineDown(f"{server.url}: {error}") from error
        return server.client

    async def _pick(self) -> Server:
        """Return the least loaded server that may be asked, waiting for one."""
        while True:
            now = time.monotonic()
            able = [server for server in self._servers if server.again_at <= now]
            if able:
                return min(able, key=lambda server: server.load)
            if now - self._last > self._patience and not any(server.load for server in self._servers):
                said = ", ".join(server.url for server in self._servers)
                raise EngineDown(f"no server has answered for {self._patience:.0f} s: {said}")
            await asyncio.sleep(0.2)

    def _good(self, server: Server) -> None:
        self._last = time.monotonic()
        self.answered += 1
        server.failures, server.again_at = 0, 0.0

    def _bad(self, server: Server, error: Exception) -> None:
        if server.again_at <= time.monotonic():  # of many requests that fail at once, one counts
            pause = min(_FIRST_PAUSE * 2**server.failures, _LONGEST_PAUSE)
            server.failures += 1
            server.again_at = time.monotonic() + pause
            print(f"{server.url}: {type(error).__name__}: {str(error)[:200]}; again in {pause:.0f} s", flush=True)


def _status(error: Exception) -> int | None:
    """Return the HTTP status of an error of mineru-vl-utils, which tells it as a field, or in its words alone."""
    told = re.search(r"[Ss]tatus code: \[?(\d{3})", str(error))
    found: int | None = getattr(error, "status_code", int(told[1]) if told else None)
    return found


def _servers_fault(error: Exception) -> bool:
    """Return whether the server failed, and not the request."""
    if isinstance(error, EngineDown):
        return False
    status = _status(error)
    if status is not None:
        return status in _BUSY
    module = type(error).__module__
    # mineru-vl-utils' ServerError without a status: no connection, or an answer that is no answer.
    return (
        module.startswith(("httpx", "httpcore")) or type(error).__name__ == "ServerError" or isinstance(error, OSError)
    )
