"""What a device says to its training process and hears from it: a line of JSON, then arrays as the wire has them."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

from protofleet.protocol.wire.arrays import Body, encode
from protofleet.protocol.wire.messages import NOTHING, Arrays

HEAD: Final = struct.Struct("<IQ")  # lengths of the JSON and of the arrays


class ClosedError(ConnectionError):
    """The other side has gone."""


def say(door: socket.socket, words: Mapping[str, Any], arrays: Arrays = NOTHING) -> None:
    text = json.dumps(words).encode()
    pieces = list(encode(arrays)) if arrays else []
    size = sum(memoryview(piece).nbytes for piece in pieces)
    try:
        door.sendall(HEAD.pack(len(text), size) + text)
        for piece in pieces:
            door.sendall(piece)
    except OSError as error:
        raise ClosedError(str(error)) from None


def hear(door: socket.socket) -> tuple[dict[str, Any], Arrays]:
    """Each array in memory of its own that whoever hears may keep."""
    text, size = HEAD.unpack(_take(door, HEAD.size))
    words: dict[str, Any] = json.loads(bytes(_take(door, text)))
    if not size:
        return words, NOTHING
    body = Body(lambda start, stop: _take(door, stop - start), size)  # which reads from front to back
    return words, {name: body[name] for name in body}


def _take(door: socket.socket, size: int) -> memoryview:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        try:
            got = door.recv_into(view[at:])
        except OSError as error:
            raise ClosedError(str(error)) from None
        if not got:
            raise ClosedError("the other side has closed")
        at += got
    return view
