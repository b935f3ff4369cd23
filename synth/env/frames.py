"""Frames: how the server and the sandboxed processes talk over a stream socket.

A frame is one JSON object plus raw bytes (database states), each with its length in front. Both
sides use this file; the sandbox imports it, so it needs the standard library only. The other end
is never trusted: lengths are bounded before memory is taken, and nothing but JSON is decoded.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

HEADER = struct.Struct("!II")  # bytes of JSON, raw bytes
HEADROOM = 64_000  # bytes of JSON around a result: names, error messages


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


class FrameTooLarge(Exception):
    """The other end announced more bytes than the limit allows."""


def send(sock: socket.socket, message: dict[str, Any], blob: bytes = b"", *, text: str | None = None) -> None:
    """Send one frame. ``text`` is the message already encoded, for results measured before."""
    body = (text if text is not None else json.dumps(message, ensure_ascii=False)).encode(
        "utf-8", "surrogatepass"
    )
    head = HEADER.pack(len(body), len(blob))
    if blob:
        sock.sendall(head + body)
        sock.sendall(blob)
    else:
        sock.sendall(head + body)


def receive(sock: socket.socket, limit: int, deadline: float | None = None) -> tuple[dict[str, Any], bytes]:
    """Read one frame.

    Args:
        sock: a connected stream socket.
        limit: the most bytes (JSON and raw together) that are accepted.
        deadline: ``time.monotonic()`` value after which to give up; None waits for ever.

    Raises:
        EOFError: the other end is gone.
        TimeoutError: the deadline passed.
        FrameTooLarge: the frame is above the limit; the stream cannot be used any further.
        ValueError: what came is not a JSON object.
    """
    body_size, blob_size = HEADER.unpack(_exactly(sock, HEADER.size, deadline))
    if body_size + blob_size > limit:
        raise FrameTooLarge(f"{body_size + blob_size} bytes, the limit is {limit}")
    try:
        message = _DECODER.decode(_exactly(sock, body_size, deadline).decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a frame must hold a JSON object")
    return message, bytes(_exactly(sock, blob_size, deadline))


def _exactly(sock: socket.socket, size: int, deadline: float | None) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    while got < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            sock.settimeout(left)
        try:
            count = sock.recv_into(view[got:])
        except ConnectionError:
            raise EOFError from None
        if count == 0:
            raise EOFError
        got += count
    return data
