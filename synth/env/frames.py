"""Frames: how the server and the sandboxed processes talk over a stream socket.

A frame is one JSON object plus raw bytes (database states), each with its length in front. Both
sides use this file; the sandbox imports it, so it needs the standard library only. The other end
is never trusted: lengths are bounded before memory is taken, and nothing but JSON is decoded.

The two ends take turns, so a frame is all that can be waiting: most come in by one system call, and
bytes after a frame break the protocol. Waiting is bounded by the kernel (``SO_RCVTIMEO``), which costs a
third of what a poll before every read does.
"""

from __future__ import annotations

import _socket as socket  # the sandbox has no use for more (see the note on imports below)
import json
import struct
import time

TYPE_CHECKING = False  # typing's own costs every episode: what is imported here is copied by every fork
if TYPE_CHECKING:
    from typing import Any

HEADER = struct.Struct("!II")  # bytes of JSON, raw bytes
HEADROOM = 64_000  # bytes of JSON around a result: names, error messages
_FIRST = 1 << 14  # bytes asked for by the first read; most frames are smaller
_WHOLE = 1 << 15  # bytes that a socket takes or refuses as a whole
_WAIT = struct.Struct("@ll")  # seconds and microseconds, as the kernel takes them
_encode = json.JSONEncoder(ensure_ascii=False).encode


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_decode = json.JSONDecoder(parse_constant=_refuse).raw_decode


class FrameTooLarge(Exception):
    """The other end announced more bytes than the limit allows."""


def wait_at_most(sock: socket.socket, which: int, seconds: float) -> None:
    """Bound every later read (``SO_RCVTIMEO``) or write (``SO_SNDTIMEO``) of a blocking socket.

    What takes longer raises BlockingIOError.
    """
    whole = int(seconds)
    part = int((seconds - whole) * 1e6)
    sock.setsockopt(socket.SOL_SOCKET, which, _WAIT.pack(whole, part if whole or part else 1))


def send(
    sock: socket.socket, message: dict[str, Any], blob: bytes = b"",
    *, text: str | None = None, deadline: float | None = None,
) -> None:  # fmt: skip
    """Send one frame.

    Args:
        text: the message already encoded, for results measured before.
        deadline: when to give up on an end that doesn't read; a small frame is bounded by
            :func:`wait_at_most` alone, for it goes out as a whole.

    Raises:
        TimeoutError: the other end doesn't read.
    """
    body = (text if text is not None else _encode(message)).encode("utf-8", "surrogatepass")
    head = HEADER.pack(len(body), len(blob)) + body
    for part in (head, blob) if blob else (head,):
        try:
            if deadline is None or len(part) <= _WHOLE:
                sock.sendall(part)
                continue
            with memoryview(part) as view:
                sent = 0
                while sent < len(part):
                    _bound(sock, socket.SO_SNDTIMEO, deadline)
                    sent += sock.send(view[sent : sent + _WHOLE])
        except BlockingIOError:
            raise TimeoutError from None


def receive(sock: socket.socket, limit: int, deadline: float | None = None) -> tuple[dict[str, Any], bytes]:
    """Read one frame.

    Args:
        sock: a connected, blocking stream socket.
        limit: the most bytes (JSON and raw together) that are accepted.
        deadline: ``time.monotonic()`` value after which to give up; None waits for ever.

    Raises:
        EOFError: the other end is gone.
        TimeoutError: the deadline passed.
        FrameTooLarge: the frame is above the limit; the stream cannot be used any further.
        ValueError: what came is not one JSON object.
    """
    data = _read(sock, _FIRST, deadline)
    while len(data) < HEADER.size:
        data += _read(sock, _FIRST, deadline)
    body_size, blob_size = HEADER.unpack_from(data)
    size = body_size + blob_size
    if size > limit:
        raise FrameTooLarge(f"{size} bytes, the limit is {limit}")
    size += HEADER.size
    if len(data) < size:
        data = _rest(sock, data, size, deadline)
    elif len(data) > size:
        raise ValueError("more than one frame at a time")
    end = HEADER.size + body_size
    try:
        text = data[HEADER.size : end].decode("utf-8", "surrogatepass")
        message, used = _decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except StopIteration:
        raise ValueError("no JSON") from None
    if used != len(text) or not isinstance(message, dict):
        raise ValueError("a frame must hold a JSON object")
    return message, bytes(data[end:])


def _read(sock: socket.socket, size: int, deadline: float | None) -> bytes:
    _bound(sock, socket.SO_RCVTIMEO, deadline)
    try:
        data = sock.recv(size)
    except BlockingIOError:
        raise TimeoutError from None
    except ConnectionError:
        raise EOFError from None
    if not data:
        raise EOFError
    return data


def _rest(sock: socket.socket, start: bytes, size: int, deadline: float | None) -> bytearray:
    """A frame of ``size`` bytes of which ``start`` is here."""
    data = bytearray(size)
    got = len(start)
    data[:got] = start
    with memoryview(data) as view:
        while got < size:
            _bound(sock, socket.SO_RCVTIMEO, deadline)
            try:
                count = sock.recv_into(view[got:])
            except BlockingIOError:
                raise TimeoutError from None
            except ConnectionError:
                raise EOFError from None
            if count == 0:
                raise EOFError
            got += count
    return data


def _bound(sock: socket.socket, which: int, deadline: float | None) -> None:
    if deadline is not None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        wait_at_most(sock, which, left)
