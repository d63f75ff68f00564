"""A broker that attacks its federation: its actions on frames, and a server that applies them to real connections."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from protofleet.protocol.transport.address import BrokerAddress, TlsFiles
from protofleet.protocol.transport.base import Connected, Item
from protofleet.protocol.transport.mqtt import Mqtt
from tests.hostile.proxy import PUBLISH, acknowledgement, end_all, read_packet, server_side, topic_and_frame

Publish = Callable[[str, bytes, bool], None]  # topic, frame, retained
Later = Callable[[float, Callable[[], None]], Any]


class Malice:
    """The attacks of a broker on published frames: it drops, alters, misdirects, repeats, delays and forges them.

    The same seed gives the same attacks as long as the frames come in the same order.
    """

    def __init__(self, honest: Publish, later: Later, seed: int, rate: float = 0.4) -> None:
        self.honest, self.later, self.dice, self.rate = honest, later, random.Random(seed), rate
        self.seen: list[tuple[str, bytes]] = []
        self.done: Counter[str] = Counter()
        self.deeds = [self.drop, self.alter, self.misplace, self.bring_back, self.hold_up, self.forge]
        self._deck: list[Publish] = []

    def publish(self, topic: str, frame: bytes, retain: bool) -> None:
        self.seen.append((topic, frame))
        if self.dice.random() < self.rate:
            deed = self._deal()
            self.done[deed.__name__] += 1
            deed(topic, frame, retain)
        else:
            self.honest(topic, frame, retain)

    def _deal(self) -> Publish:
        """Return the next attack from a shuffled deck, so that a short run also meets each attack."""
        if not self._deck:
            self._deck = self.dice.sample(self.deeds, len(self.deeds))
        return self._deck.pop()

    def drop(self, topic: str, frame: bytes, retain: bool) -> None:
        pass

    def alter(self, topic: str, frame: bytes, retain: bool) -> None:
        changed = bytearray(frame)
        changed[self.dice.randrange(3, len(frame))] ^= 1 << self.dice.randrange(8)
        self.honest(topic, bytes(changed), retain)

    def misplace(self, topic: str, frame: bytes, retain: bool) -> None:
        elsewhere = [seen for seen, _ in self.seen if seen != topic] or [topic]
        self.honest(self.dice.choice(elsewhere), frame, False)

    def bring_back(self, topic: str, frame: bytes, retain: bool) -> None:
        self.honest(topic, frame, retain)
        for _ in range(3):
            self.honest(*self.dice.choice(self.seen), False)

    def hold_up(self, topic: str, frame: bytes, retain: bool) -> None:
        self.later(20 * self.dice.random(), lambda: self.honest(topic, frame, retain))

    def forge(self, topic: str, frame: bytes, retain: bool) -> None:
        """Publish the first half of an earlier frame with random bytes as the rest, then the real frame."""
        other = self.dice.choice(self.seen)[1]
        self.honest(topic, other[: len(other) // 2] + self.dice.randbytes(len(other) // 2 + 64), retain)
        self.honest(topic, frame, retain)

    def has_read(self, arrays: list[np.ndarray]) -> list[bool]:
        """Return, for some 12-byte pieces of the arrays that a run has learned, whether it has seen each one."""
        seen = b"".join(frame for _, frame in self.seen)
        windows = {seen[i : i + 12] for i in range(len(seen) - 11)}
        pieces = [np.ascontiguousarray(v).tobytes()[i : i + 12] for v in arrays for i in range(0, 24, 4)]
        assert len(pieces) >= 12
        return [piece in windows for piece in pieces]


class MaliciousBroker:
    """A server that speaks MQTT over TLS with the broker's own certificate and acknowledges every PUBLISH.

    It passes connections, subscriptions and deliveries through to a Mosquitto behind it that has no access rules.
    It gives every published frame to a Malice, which publishes to that Mosquitto over a separate connection.
    `pace` is the factor by which the clocks of the parties run faster than real time.
    """

    def __init__(self, behind: BrokerAddress, files: TlsFiles, seed: int, rate: float, pace: float) -> None:
        self._behind, self._pace = behind, pace
        self._inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._own = Mqtt("malice", behind, self._inbox)
        self._own.connect()
        while not isinstance(self._inbox.get(timeout=20), Connected):
            pass
        self._loop = asyncio.new_event_loop()
        self.malice = Malice(self._own.publish, self._later, seed, rate)
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=server_side(files))
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(end_all(self._server), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._own.close()

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_later(seconds / self._pace, call)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind = await asyncio.open_connection(self._behind.host, self._behind.port)
        down = asyncio.ensure_future(self._pass_on(behind_reader, writer))
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            while True:
                packet, start = await read_packet(reader)
                if packet[0] >> 4 == PUBLISH:
                    writer.write(self._take(packet, start))
                else:
                    behind.write(packet)
        down.cancel()
        for end in (behind, writer):
            end.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            while True:
                writer.write((await read_packet(reader))[0])
                await writer.drain()
        writer.close()

    def _take(self, packet: bytes, start: int) -> bytes:
        """Give a PUBLISH to the Malice and return the bytes that acknowledge it."""
        topic, frame = topic_and_frame(packet, start)
        self.malice.publish(topic, frame, bool(packet[0] & 1))
        return acknowledgement(packet, start)


@contextlib.contextmanager
def malicious_broker(
    behind: BrokerAddress, files: TlsFiles, seed: int, rate: float = 0.4, pace: float = 1.0
) -> Iterator[MaliciousBroker]:
    made = MaliciousBroker(behind, files, seed, rate, pace)
    try:
        yield made
    finally:
        made.close()
