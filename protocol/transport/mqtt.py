"""Speak MQTT 5 with paho.

Only this module and the module stream.py, which it imports, use paho. The network thread owns the socket and paho.
The network thread fills the receive queue, and never calls code of the queue's reader. The loop thread of paho is
not used, for five reasons. An exception ends the loop thread, but `is_connected()` stays true. The loop thread
hides why a connection failed. It waits without jitter before a new try. Its select() fails from the 1024th file
descriptor on. And each connection would need its own loop thread.

Messages that the broker has not acknowledged are dropped with the connection. After a reconnect, paho would
send all of these messages at once, even if they exceed the window. And paho would send
an oversized packet again and again. Instead, the layer above requests lost data again.
"""

from __future__ import annotations

import logging
import queue
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from paho.mqtt.client import DisconnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from protofleet.protocol.transport.address import (
    FINAL_REASONS,
    OTHER_SERVER,
    TAKEN_OVER,
    BrokerAddress,
    BrokerError,
    explain,
)
from protofleet.protocol.transport.base import (
    Arrived,
    Connected,
    Denied,
    Disconnected,
    Item,
    Will,
    packet_bytes,
)
from protofleet.protocol.transport.broker_nodes import NodeTurn
from protofleet.protocol.transport.caught_errors import CaughtErrors, never_raises
from protofleet.protocol.transport.network import ConnectionEntry, NetworkThreads, Socket
from protofleet.protocol.transport.outbox import Outbox, Publish, Subscribe, Unsubscribe
from protofleet.protocol.transport.packets import (
    MOST_RECEIVED,
    PINGREQ,
    Acknowledgement,
    Message,
    Packet,
    puback,
    publish,
)
from protofleet.protocol.transport.reconnect import Backoff, ConnectionEnd
from protofleet.protocol.transport.stream import StreamClient
from protofleet.protocol.transport.tls import certificate_end, finish_handshake, rereading_context

KEEPALIVE_SECONDS: Final = 30
# Seconds in which a node has to answer a ping if there are other nodes. With them, a client is on another node within
# twice its keepalive, although a silent connection is checked only once in CHECK_SECONDS.
ANSWER_SECONDS: Final = 15
CONNECT_SECONDS: Final = 5
LEAVE_SECONDS: Final = 1.0
# Largest number of PUBLISH packets in flight; 20 blocks of 64 KiB fill a line of 200 Mbit/s with a round-trip
# time of 50 ms.
WINDOW: Final = 20
NO_SUBSCRIBER: Final = 16  # reason code of an acknowledgement; it is not a failure
FIRST_FAILURE: Final = 128  # lowest reason code of an acknowledgement that means a failure
CHUNKS: Final = 4  # chunks that one connection reads before the next connection has its turn
SEND_BYTES: Final = 512 << 10  # bytes that are passed to the socket at a time
# Packet ids of our PUBLISH packets; the packets of paho have ids from 1.
PACKET_IDS: Final = range(1 << 15, 1 << 16)
MAX_PACKET: Final = 268_435_455  # largest number of bytes in a packet, if the broker states no limit
RECEIVE_MAX: Final = 65_535  # largest number of PUBLISH packets in flight, if the broker states no limit

log = logging.getLogger(__name__)

ItemQueue: TypeAlias = "queue.SimpleQueue[Item] | queue.Queue[Item]"


class PahoErrors(logging.Handler):
    """A log handler that keeps the last socket error of paho.

    paho only logs the error of a socket. With TLS, this log record is the only source for the cause.
    """

    last: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        found = [arg for arg in record.args or () if isinstance(arg, OSError)]
        self.last = found[0] if found else self.last

    def logger(self) -> logging.Logger:
        """Return a new logger that has only this handler, and no parent logger."""
        logger = logging.Logger("paho", logging.ERROR)
        logger.addHandler(self)
        return logger


class Mqtt:
    """A `Transport` that keeps trying to connect.

    The transport starts with `connect`. It ends when it is closed, or when the broker refuses the connection for
    a reason that lasts. A process with many connections passes a shared `network`. Otherwise the transport makes
    its own network.
    """

    def __init__(
        self,
        client_id: str,
        broker: BrokerAddress,
        receive_queue: ItemQueue,
        *,
        subscriptions: Sequence[str] = (),
        session_seconds: int = 0,
        clean_start: bool = True,
        retry_seconds: tuple[float, float] = (0.5, 30.0),
        network: NetworkThreads | None = None,
        on_unheard: Callable[[str], None] = lambda topic: None,
        retries_after_cut: bool = True,
    ) -> None:
        """Set up the transport.

        `on_unheard` is called on the network thread with the topic of a frame that no client has subscribed to.
        If `retries_after_cut` is false, the owner calls `connect` again after a connection that another client may
        have ended.
        """
        self.errors = CaughtErrors()
        self.broker_certificate_ends: float | None = None
        self._broker, self._receive_queue = broker, receive_queue
        self._turn = NodeTurn(broker.nodes, client_id)
        self._returns: Callable[[], bool] = lambda: False
        self._on_unheard, self._retries_after_cut = on_unheard, retries_after_cut
        self._session_seconds, self._clean_start = session_seconds, clean_start
        self._topics = dict.fromkeys(subscriptions)
        self._acks: list[bytes] = []  # acknowledgements that are still to be sent
        self._asked: dict[int, str] = {}  # packet id of a SUBSCRIBE -> its topic
        self._ending: ConnectionEnd | None = None
        self._paho_errors, self._accepted, self._denied, self._killed = PahoErrors(), False, "", False
        self._rejected = ""  # reason why the owner cannot use the present connection
        self._client = self._paho(client_id)
        self._outbox, self._published = Outbox(self._wake), 0
        # `_pinged_at` is the time of the last ping, or 0 before the first ping.
        self._heard_at = self._said_at = self._pinged_at = 0.0
        self._name, self._network = client_id, network or NetworkThreads(client_id)
        self._entry: ConnectionEntry | None = None  # entry of this connection in the network
        self._backoff, self._opened_at, self._closed = Backoff(*retry_seconds), 0.0, False
        self._pause = 0.0  # Seconds until the next try, after a cut.

    def connect(self, will: Will | None = None, returns: Callable[[], bool] = lambda: False) -> None:
        """Start connecting; also after a cut, if this client does not retry by itself.

        The function `returns` is called when another process has connected with the name of this client. This
        client connects again only if the function returns True.
        """
        self._returns = returns
        if will is not None:
            self._client.will_set(will.topic, will.frame, qos=1, retain=True)
        self._entry, self._pause = self._network.add(self, self._pause), 0.0

    def subscribe(self, topic: str) -> None:
        self._topics[topic] = None
        self._outbox.put(Subscribe(topic))

    def unsubscribe(self, topic: str) -> None:
        self._topics.pop(topic, None)
        self._outbox.put(Unsubscribe(topic))

    def publish(self, topic: str, frame: bytes, retain: bool = False, qos: int = 1) -> None:
        order = Publish(topic, frame, retain, packet_bytes(topic, len(frame)), qos)
        if problem := self._outbox.put(order):
            self._tell(Denied(topic, problem))

    def reject_connection(self, why: str) -> None:
        self._rejected = why
        self._wake()

    def flush(self, seconds: float) -> bool:
        """Wait up to `seconds`, and return whether the broker has acknowledged all PUBLISH packets."""
        return self._outbox.wait_until_empty(seconds)

    def close(self) -> None:
        """Wait a moment for the acknowledgement of all PUBLISH packets, and leave with a DISCONNECT.

        After a DISCONNECT, the broker does not publish the will.
        """
        close_all([self])

    def kill(self) -> None:
        """End the connection as a power cut does: without a DISCONNECT.

        The broker then publishes the will.
        """
        self._killed = True
        self._leave()
        self._join(LEAVE_SECONDS)

    def _leave(self) -> None:
        self._closed = True
        if self._entry is not None:
            self._network.leave(self._entry)

    def _join(self, seconds: float) -> bool:
        return self._entry is None or self._network.join(self._entry, seconds)

    def _wake(self) -> None:
        if self._entry is not None:
            self._network.wake(self._entry)

    @never_raises
    def _tell(self, item: Item) -> None:
        self._receive_queue.put(item)

    # All methods below run on the network's threads. The methods that these threads call are first, and the
    # methods that paho calls are last.

    def open(self) -> Socket | None:
        self._ending, self._accepted, self._denied, self._paho_errors.last = None, False, "", None
        self._rejected, self._opened_at = "", time.monotonic()
        self._heard_at = self._said_at = self._opened_at
        self._pinged_at = 0.0
        self._client.begin()
        return self._client.socket() if self._is_done(self._open_connection) else None

    def step(self) -> bool:
        if self._killed:
            return False
        if self._rejected:
            self._ending = ConnectionEnd(f"{self._turn.node}: {self._rejected}")
            return False
        return self._is_done(self._step) and self._ending is None and self._client.socket() is not None

    def wants_write(self) -> bool:
        return self._client.has_unsent()

    def has_decrypted(self) -> bool:
        sock = self._client.socket()
        return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0

    def end(self) -> float:
        self._hang_up()
        if self._closed:
            return float("inf")
        ending = self._ending or ConnectionEnd(f"{self._turn.node}: the connection was lost")
        self._backoff.ended(ending, time.monotonic() - self._opened_at)
        told = self._turn.ended(ending, self._accepted)
        if told is None:
            return 0.0
        return self._report(told)

    def _report(self, ending: ConnectionEnd) -> float:
        hint = f"; is another process connected as {self._name}?" if self._backoff.flapping else ""
        is_cut = ending.is_cut and not ending.final
        self._pause = self._backoff.pause()
        self._tell(Disconnected(ending.reason + hint, ending.final, is_cut, ending.taken_over))
        waits = is_cut and not self._retries_after_cut
        return float("inf") if ending.final or waits else self._pause

    def _is_done(self, call: Callable[[], None]) -> bool:
        """Make a call, and return False if the call has ended the connection."""
        try:
            call()
        except OSError as error:
            self._ending = self._explained(error)
        except BrokerError as error:  # the TLS files cannot be used any more
            self._ending = ConnectionEnd(f"{self._turn.node}: {error}")
        except Exception as error:  # noqa: BLE001 - `caught` logs it
            # paho raises an error for packets that no broker should send. This ends the connection, but not
            # this thread.
            self.errors.caught(f"the connection to {self._turn.node}")
            self._ending = ConnectionEnd(f"{self._turn.node}: the connection broke ({error!r})")
        else:
            return True
        return False

    def _open_connection(self) -> None:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._session_seconds
        properties.MaximumPacketSize = MOST_RECEIVED
        node, clean = self._turn.node, self._clean_start
        self._client.connect(
            node.host, node.port, KEEPALIVE_SECONDS, clean_start=clean, properties=properties
        )

    def _step(self) -> None:
        self._read()
        self._client.flush()
        self._acknowledge()
        # While the socket has not accepted all bytes, no further orders are taken from the outbox.
        while self._can_send() and self._send_batch():
            pass
        if self._closed and not self._killed:
            self._client.disconnect()
        self._client.hand_over_end()
        self._keep_alive()

    def _read(self) -> None:
        """Read from the socket, and acknowledge all packets of one chunk together."""
        for _ in range(CHUNKS):
            packets, size = self._client.receive(self._network.buffer)
            if size:
                self._heard_at = time.monotonic()
            self._acks += [puback(i) for packet in packets if (i := self._taken(packet))]
            self._acknowledge()
            if size < len(self._network.buffer):
                return

    def _acknowledge(self) -> None:
        if self._acks and self._can_send():
            acks, self._acks = self._acks, []
            self._send(acks)

    def _taken(self, packet: Packet) -> int:
        """Handle a packet, and return the packet id to acknowledge, or 0."""
        match packet:
            case Message(topic, payload, packet_id, retained):
                self._arrived(topic, payload, retained)
                return packet_id
            case Acknowledgement(packet_id, code):
                self._acknowledged(packet_id, code)
            case bytes():
                self._client.hand_over(packet)
        return 0

    def _can_send(self) -> bool:
        return self._client.socket() is not None and not self._client.has_unsent()

    def _send_batch(self) -> bool:
        """Send the next PUBLISH packets together; at the first order of another kind, execute this order and stop.

        Return False if no order could be executed.
        """
        pieces, size = list[bytes](), 0
        while size < SEND_BYTES and (order := self._outbox.take()) is not None:
            match order:
                case Publish(topic, frame, retain, qos=qos):
                    pieces += self._numbered(topic, frame, retain, qos)
                    size += order.size
                case Subscribe() | Unsubscribe():
                    self._send(pieces)
                    self._change(order)
                    return True
        self._send(pieces)
        return bool(pieces)

    def _numbered(self, topic: str, frame: bytes, retain: bool, qos: int) -> tuple[bytes, bytes]:
        number = 0
        if qos:
            number = PACKET_IDS[self._published % len(PACKET_IDS)]
            self._published += 1
            self._outbox.sent(number, topic)
        return publish(topic.encode(), frame, retain, number)

    def _send(self, pieces: list[bytes]) -> None:
        if pieces:
            self._client.send(pieces)
            self._said_at = time.monotonic()

    @never_raises
    def _change(self, order: Subscribe | Unsubscribe) -> None:
        if isinstance(order, Subscribe):
            self._ask_for(order.topic)
        else:
            self._client.unsubscribe(order.topic)

    def _keep_alive(self) -> None:
        """Send a ping when the connection is silent, and end the connection when no byte arrives.

        Any received byte shows that the broker works. On a slow line the reply to a ping arrives only after
        all earlier bytes.
        """
        now = time.monotonic()
        if self._client.socket() is None or now - min(self._heard_at, self._said_at) < KEEPALIVE_SECONDS:
            return
        patience = ANSWER_SECONDS if self._turn.several else KEEPALIVE_SECONDS
        silent = now - max(self._heard_at, self._pinged_at) >= patience
        if silent and (self._pinged_at > self._heard_at or not self._accepted):
            self._ending = ConnectionEnd(
                f"{self._turn.node}: connection lost (it is silent)", without_disconnect=True
            )
        elif self._accepted and now - self._pinged_at >= KEEPALIVE_SECONDS and not self._client.want_write():
            self._pinged_at = now
            self._send([PINGREQ])

    def _ask_for(self, topic: str) -> None:
        _, mid = self._client.subscribe(topic, qos=1)
        if mid is not None:
            self._asked[mid] = topic

    def _hang_up(self) -> None:
        self._outbox.connection_lost()
        self._asked.clear()
        self._acks.clear()
        if (sock := self._client.socket()) is not None:
            sock.close()

    def _explained(self, error: OSError) -> ConnectionEnd:
        node = self._turn.node
        return ConnectionEnd(f"{node}: {explain(node, self._broker.tls, error)}")

    def _refused(self, reason: ReasonCode) -> ConnectionEnd:
        known = FINAL_REASONS.get(reason.value)
        taken_over = reason.value == TAKEN_OVER
        returns = taken_over and (self._returns() or not self._retries_after_cut)
        elsewhere = self._turn.several and reason.value in OTHER_SERVER
        final = known is not None and not returns and not elsewhere
        advice = f"{known}; " if known else ""
        words = f"{self._turn.node}: {advice}it said {reason} ({reason.value})"
        return ConnectionEnd(words, final, taken_over=taken_over)

    def _paho(self, client_id: str) -> StreamClient:
        client = StreamClient(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5)
        client.connect_timeout = CONNECT_SECONDS
        client.enable_logger(self._paho_errors.logger())
        if self._broker.tls is not None:
            client.tls_set_context(rereading_context(self._broker.tls))
        client.username_pw_set(self._broker.user_name, self._broker.password)
        client.on_socket_open = lambda _c, _d, sock: self._socket_opened(sock)
        client.on_connect = self._connected
        client.on_subscribe = self._subscribed
        client.on_disconnect = self._disconnected
        return client

    def _socket_opened(self, sock: object) -> None:
        self.broker_certificate_ends = certificate_end(sock)
        finish_handshake(sock)

    @never_raises
    def _connected(self, _c: object, _d: object, _f: object, code: ReasonCode, told: object) -> None:
        if code.is_failure:
            self._ending = self._refused(code)
            return
        max_packet = getattr(told, "MaximumPacketSize", MAX_PACKET)
        receive_max = getattr(told, "ReceiveMaximum", RECEIVE_MAX)
        self._accepted = True
        if self._turn.several:
            log.info("%s is connected to the broker at %s", self._name, self._turn.node)
        self._outbox.connected(min(WINDOW, receive_max), max_packet)
        # Subscribe every time, because a restarted broker has forgotten the topics.
        for topic in list(self._topics):
            self._ask_for(topic)
        self._tell(Connected(max_packet, receive_max))

    @never_raises
    def _arrived(self, topic: bytes, payload: bytes, retained: bool) -> None:
        try:
            known = topic.decode()
        except UnicodeDecodeError:  # a faulty broker may send any bytes as a topic, and must not fill the log
            return
        self._tell(Arrived(known, payload, retained))

    @never_raises
    def _acknowledged(self, packet_id: int, code: int) -> None:
        topic = self._outbox.acknowledged(packet_id)
        if topic is not None and code == NO_SUBSCRIBER:
            self._on_unheard(topic)
        if topic is not None and code >= FIRST_FAILURE:
            reason = ReasonCode(PacketTypes.PUBACK, identifier=code)
            # Mosquitto 2.0.11 ends the connection after it has refused a message.
            self._denied = f"after it refused {topic}"
            self._tell(Denied(topic, f"the broker did not pass it on: {reason} ({code})"))

    @never_raises
    def _subscribed(self, _c: object, _d: object, mid: int, codes: list[ReasonCode], _p: object) -> None:
        topic = self._asked.pop(mid, None)
        if topic is not None and codes[0].is_failure:
            self._tell(Denied(topic, f"the broker does not let us listen: {codes[0]} ({codes[0].value})"))

    @never_raises
    def _disconnected(self, _c: object, _d: object, by: DisconnectFlags, code: ReasonCode, _: object) -> None:
        if self._ending is not None:
            return  # the reason is already known from CONNACK
        if by.is_disconnect_packet_from_server:
            self._ending = self._refused(code)
        elif self._accepted:
            why = self._denied or getattr(self._paho_errors.last, "strerror", None) or code
            self._ending = ConnectionEnd(
                f"{self._turn.node}: connection lost ({why})", without_disconnect=not self._denied
            )
        else:
            self._ending = self._explained(self._paho_errors.last or ConnectionResetError())


def close_all(transports: Sequence[Mqtt]) -> None:
    """Close all transports together, within the time limit for a single transport."""
    deadline = time.monotonic() + LEAVE_SECONDS
    for transport in transports:
        transport.flush(max(0.0, deadline - time.monotonic()))
        transport._leave()
    deadline = time.monotonic() + LEAVE_SECONDS
    for transport in transports:
        transport._join(max(0.0, deadline - time.monotonic()))
    for transport in transports:
        transport.kill()  # this has an effect only if the network thread hangs
