"""Messages between a device and its child process: JSON, then arrays in the format of the network protocol."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

from protofleet.protocol.wire.arrays import Body, encode, parts
from protofleet.protocol.wire.messages import NOTHING, Arrays

HEAD: Final = struct.Struct("<IQ")  # lengths of the JSON and of the arrays


class ClosedError(ConnectionError):
    """An error for a connection whose other side has closed it."""


def send(connection: socket.socket, message: Mapping[str, Any], arrays: Arrays = NOTHING) -> None:
    """Send a message and arrays; arrays that are on the disk are read one at a time."""
    text = json.dumps(message).encode()
    size = sum(length for _, length in parts(arrays)) if arrays else 0
    _give(connection, HEAD.pack(len(text), size) + text)
    for piece in encode(arrays) if arrays else ():
        _give(connection, piece)


def receive(connection: socket.socket) -> tuple[dict[str, Any], Arrays]:
    """Receive a message and arrays; each array gets its own memory."""
    text, size = HEAD.unpack(_take(connection, HEAD.size))
    message: dict[str, Any] = json.loads(bytes(_take(connection, text)))
    if not size:
        return message, NOTHING
    body = Body(lambda start, stop: _take(connection, stop - start), size)  # it is read from front to back
    return message, {name: body[name] for name in body}


def _give(connection: socket.socket, data: bytes | memoryview) -> None:
    try:
        connection.sendall(data)
    except OSError as error:
        raise ClosedError(str(error)) from None


def _take(connection: socket.socket, size: int) -> memoryview:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        try:
            got = connection.recv_into(view[at:])
        except OSError as error:
            raise ClosedError(str(error)) from None
        if not got:
            raise ClosedError("the other side has closed")
        at += got
    return view
