"""Messages between a device and its child process: JSON, then arrays in the format of the network protocol."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

from protofleet.protocol.wire.arrays import Body, encode, parts
from protofleet.protocol.wire.messages import NOTHING, Arrays

HEAD: Final = struct.Struct("<IQ")  # the number of bytes of the JSON and of the arrays


class ClosedError(ConnectionError):
    """An error for a connection that the other process has closed."""


def send(connection: socket.socket, message: Mapping[str, Any], arrays: Arrays = NOTHING) -> None:
    """Send a message and arrays; arrays on the disk are read one at a time, which saves memory."""
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
    # The arrays are read in order, so the next bytes of the socket are always the right bytes.
    body = Body(lambda start, stop: _take(connection, stop - start), size)
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
            raise ClosedError("the other process has closed the connection")
        at += got
    return view
