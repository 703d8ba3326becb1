"""Frames between a job and its engine process: a header in JSON and bytes, over a Unix socket of the same user.

A frame is two lengths (4 bytes each, big endian), the header, and the payload. A page goes in as its pixels, an answer
comes back as a header alone.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

_LENGTHS = struct.Struct(">II")


def pack(header: dict[str, Any], payload: bytes = b"") -> list[bytes]:
    """Return a frame in the pieces to send."""
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return [_LENGTHS.pack(len(text), len(payload)), text, payload]


async def read(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """Return the next frame. Raises asyncio.IncompleteReadError when the other side is gone."""
    text, payload = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    header = json.loads((await reader.readexactly(text)).decode("utf-8", "surrogatepass"))
    return header, await reader.readexactly(payload)


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Return the next frame. Raises ConnectionError when the other side is gone."""
    text, payload = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size))
    header = json.loads(_exactly(connection, text).decode("utf-8", "surrogatepass"))
    return header, _exactly(connection, payload)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise ConnectionError("the engine process has closed the connection")
        view = view[got:]
    return bytes(data)
