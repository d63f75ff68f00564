"""Flood topics over a separate socket from a separate process: python -m tests.hostile.flooder '{...}'.

It writes MQTT by hand, because paho would only be as fast as the paho of the flooded party.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import time
from typing import Any


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


def packet(kind: int, body: bytes) -> bytes:
    length, size = b"", len(body)
    while True:
        size, digit = divmod(size, 128)
        length += bytes([digit | (128 if size else 0)])
        if not size:
            return bytes([kind]) + length + body


def main(told: dict[str, Any]) -> None:
    """Send at most `rate` frames a second, in turn on each topic, until the time is over."""
    context = ssl.create_default_context(cafile=told["ca"])
    context.load_cert_chain(told["cert"], told["key"])
    plain = socket.create_connection((told["host"], told["port"]))
    with context.wrap_socket(plain, server_hostname=told["host"]) as line:
        line.sendall(packet(0x10, text("MQTT") + b"\x05\x02\x00\x3c\x00" + text(told["client"])))
        told_back = line.recv(1024)
        assert told_back[0] == 0x20 and told_back[3] == 0, told_back
        frames = [bytes.fromhex(frame) for frame in told["frames"]]
        said = [packet(0x30, text(topic) + b"\x00" + frame) for topic in told["topics"] for frame in frames]
        many = b"".join(said) * 64
        begun, sent, said_at = time.monotonic(), 0, 0.0
        while (spent := time.monotonic() - begun) < told["seconds"]:
            if sent > told["rate"] * spent:
                time.sleep(0.01)
                continue
            line.sendall(many)
            sent += 64 * len(said)
            if spent > said_at + 1:
                said_at = spent
                print(sent, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
