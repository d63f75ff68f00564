"""A proxy without TLS before a broker: it parses MQTT and counts the bytes of passing PUBLISH packets."""

import asyncio
import contextlib
import threading
from collections import Counter

from protofleet.protocol.transport.address import BrokerAddress
from tests.hostile.proxy import HANG_UPS, PUBLISH, end_all, read_packet, topic_and_frame


class CountingProxy:
    """A proxy with one port for each party, so the port shows the party of a packet."""

    def __init__(self, broker):
        self._broker = broker
        self.bytes = (
            Counter()
        )  # (party, direction as the party sees it: "sent" or "received", topic) -> bytes
        self._ports, self._servers = {}, []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for server in self._servers:
            asyncio.run_coroutine_threadsafe(end_all(server), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def address(self, party):
        if party not in self._ports:
            made = asyncio.start_server(lambda r, w: self._serve(party, r, w), "127.0.0.1", 0)
            server = asyncio.run_coroutine_threadsafe(made, self._loop).result(20)
            self._servers.append(server)
            self._ports[party] = server.sockets[0].getsockname()[1]
        return BrokerAddress(port=self._ports[party])

    def total(self, party, direction, without=""):
        found = self.bytes.items()
        return sum(
            n for (who, way, topic), n in found if (who, way) == (party, direction) and topic != without
        )

    async def _serve(self, party, reader, near):
        try:
            far_reader, far = await asyncio.open_connection(self._broker.host, self._broker.port)
        except HANG_UPS:
            near.transport.abort()
            return
        down = asyncio.ensure_future(self._pass(far_reader, near, party, "received"))
        await self._pass(reader, far, party, "sent")
        down.cancel()

    async def _pass(self, source, sink, party, direction):
        with contextlib.suppress(*HANG_UPS):
            while True:
                packet, start = await read_packet(source)
                if packet[0] >> 4 == PUBLISH:
                    self.bytes[party, direction, topic_and_frame(packet, start)[0]] += len(packet)
                sink.write(packet)
                await sink.drain()
        sink.close()
