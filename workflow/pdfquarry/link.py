"""A job's connection to its engine process: pages go out, answers come in; a dead or hung engine is started again."""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from pdfquarry.engine import wire
from pdfquarry.errors import EnvironmentFault

# Deaths without a page answered in between, after which the machine is to blame and not a page: one page that kills
# its engine takes four to be found (see ``pages``).
MOST_DEATHS = 6


class Process(Protocol):
    """An engine process (``engine_process.EngineProcess``)."""

    socket: Any
    started: bool
    start_seconds: float

    def alive(self) -> bool:
        """Return whether it runs."""

    def kill(self) -> None:
        """End it and its children."""

    def close(self) -> None:
        """Leave it to the next job, or end it when it is not to linger."""


class EngineLink:
    """Sends pages and collects answers.

    Args:
        start: opens an engine process; raises EnvironmentFault when it can't.
        stall: seconds without a sign of work, with pages in flight, after which the engine counts as hung.
    """

    def __init__(self, start: Callable[[], Process], stall: float) -> None:
        self._start, self._stall = start, stall
        self._process: Process | None = None
        self._connection: socket.socket | None = None
        self._inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._gone = False
        self._steps, self._moved = -1, 0.0
        self._deaths = 0
        self.in_flight: set[int] = set()
        self.starts = 0
        self.start_seconds = 0.0
        self.state: dict[str, Any] = {}

    def send(self, page: int, size: tuple[int, int], pixels: bytes, regions: list[dict[str, Any]] | None) -> None:
        """Send a page; its answer carries ``page`` as its id. Starts the engine if need be.

        Raises EnvironmentFault when it doesn't start.
        """
        if self._process is None:
            self._open()
        self.in_flight.add(page)
        assert self._connection is not None
        header = {"id": page, "width": size[0], "height": size[1], "regions": regions}
        try:
            for piece in wire.pack(header, pixels):
                self._connection.sendall(piece)
        except OSError:
            self._gone = True

    def answers(self) -> list[dict[str, Any]]:
        """Return what has come in since the last call."""
        found: list[dict[str, Any]] = []
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return found
            if message is None:
                self._gone = True
            elif "id" in message:
                self.in_flight.discard(message["id"])
                self._moved, self._deaths = time.monotonic(), 0
                found.append(message)
            else:
                if message["steps"] != self._steps:
                    self._steps, self._moved = message["steps"], time.monotonic()
                self.state = message["state"]

    def lost(self) -> set[int]:
        """Return the pages that were in flight when the engine died or hung, having ended it; else an empty set.

        Raises EnvironmentFault when it has died too often.
        """
        if self._process is None or not self.in_flight:
            return set()
        hung = time.monotonic() - self._moved > self._stall
        if not (self._gone or hung):
            return set()
        lost, self.in_flight = self.in_flight, set()
        self._deaths += 1
        words = f"no sign of work for {self._stall:.0f} s" if hung and not self._gone else "it died"
        print(f"engine: {words}, with {len(lost)} pages in flight", flush=True)
        self._disconnect()
        self._process.kill()
        self._process = None
        if self._deaths >= MOST_DEATHS:
            raise EnvironmentFault(f"engine: {words} {self._deaths} times without a page read; its log says why")
        return lost

    def close(self) -> None:
        """Disconnect. Pages in flight are dropped by the engine."""
        self._disconnect()
        if self._process is not None:
            self._process.close()
            self._process = None

    def _open(self) -> None:
        process = self._start()
        self.starts += process.started
        self.start_seconds += process.start_seconds
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(process.socket))
            connection.settimeout(60)
            greeting = b""
            while not greeting.endswith(b"\n"):
                byte = connection.recv(1)
                if not byte:
                    raise ConnectionError("no greeting")
                greeting += byte
            connection.settimeout(None)
            # A hung engine takes nothing off the socket; sending must not hang with it. Receiving may wait.
            patience = struct.pack("ll", int(self._stall), 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        except OSError as error:
            process.kill()
            raise EnvironmentFault(f"engine: it does not answer on its socket: {error}") from error
        self.state = json.loads(greeting)["state"]
        self._process, self._connection, self._gone = process, connection, False
        self._inbox = queue.SimpleQueue()
        self._steps, self._moved = -1, time.monotonic()
        threading.Thread(target=_receive, args=(connection, self._inbox), daemon=True, name="engine").start()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _receive(connection: socket.socket, inbox: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    """Put each message into ``inbox``, and None when the engine is gone."""
    try:
        while True:
            inbox.put(wire.receive(connection)[0])
    except (OSError, ValueError):
        inbox.put(None)
