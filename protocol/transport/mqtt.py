"""MQTT 5 at QoS 1 over paho, and the only file that knows paho.

One thread owns the socket and paho; it fills the inbox and calls no code of its users. paho's own loop thread
is not used: any exception ends it while `is_connected()` stays true, it hides why a connection failed, it
waits without jitter, and its select() fails from the 1024th file descriptor on.

What the broker has not acknowledged is dropped with the connection. paho would send all of it at once
after a reconnect, past every window, and a packet too large among it for ever; the layer above asks again.
"""

from __future__ import annotations

import logging
import queue
import selectors
import ssl
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from paho.mqtt.client import Client, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from protofleet.protocol.transport.address import (
    FINAL_REASONS,
    TAKEN_OVER,
    BrokerAddress,
    BrokerError,
    explain,
)
from protofleet.protocol.transport.base import Arrived, Connected, Denied, Item, Will, packet_bytes
from protofleet.protocol.transport.caught_errors import CaughtErrors, never_raises
from protofleet.protocol.transport.outbox import Order, Outbox, Publish, Subscribe, Unsubscribe
from protofleet.protocol.transport.reconnect import Backoff, ConnectionEnd, ReconnectLoop
from protofleet.protocol.transport.tls import finish_handshake, rereading_context

KEEPALIVE_SECONDS: Final = 30
CONNECT_SECONDS: Final = 5
LEAVE_SECONDS: Final = 1.0
WINDOW: Final = 20  # publishes in flight: 20 blocks of 64 KiB fill 200 Mbit/s at 50 ms
MAX_PACKET: Final = 268_435_455  # of a broker that states no limit
RECEIVE_MAX: Final = 65_535  # likewise

Inbox: TypeAlias = "queue.SimpleQueue[Item] | queue.Queue[Item]"


class PahoErrors(logging.Handler):
    """paho keeps a socket's error to itself but logs it; under TLS nothing else says what is wrong."""

    last: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        found = [arg for arg in record.args or () if isinstance(arg, OSError)]
        self.last = found[0] if found else self.last

    def logger(self) -> logging.Logger:
        """Outside the tree of loggers, with this handler alone."""
        logger = logging.Logger("paho", logging.ERROR)
        logger.addHandler(self)
        return logger


class Mqtt:
    """A `Transport`. Once told to connect it keeps trying, until it is closed or told that trying again is wrong."""

    def __init__(
        self,
        client_id: str,
        broker: BrokerAddress,
        inbox: Inbox,
        *,
        subscriptions: Sequence[str] = (),
        session_seconds: int = 0,
        clean_start: bool = True,
        retry_seconds: tuple[float, float] = (0.5, 30.0),
    ) -> None:
        self.errors = CaughtErrors()
        self._broker, self._inbox = broker, inbox
        self._returns: Callable[[], bool] = lambda: False
        self._session_seconds, self._clean_start = session_seconds, clean_start
        self._topics = dict.fromkeys(subscriptions)
        self._asked: dict[int, str] = {}  # packet id of a SUBSCRIBE -> its topic
        self._ending: ConnectionEnd | None = None
        self._paho_errors, self._accepted, self._denied, self._killed = PahoErrors(), False, "", False
        self._rejected = ""  # why, where the owner cannot use the present connection
        self._client = self._paho(client_id)
        self._outbox = Outbox()
        self._reconnect = ReconnectLoop(client_id, self._connection, self._tell, Backoff(*retry_seconds))

    def connect(self, will: Will | None = None, returns: Callable[[], bool] = lambda: False) -> None:
        """`returns`: whether to connect again after another process has come under this name."""
        self._returns = returns
        if will is not None:
            self._client.will_set(will.topic, will.frame, qos=1, retain=True)
        self._reconnect.start()

    def subscribe(self, topic: str) -> None:
        self._topics[topic] = None
        self._outbox.put(Subscribe(topic))

    def unsubscribe(self, topic: str) -> None:
        self._topics.pop(topic, None)
        self._outbox.put(Unsubscribe(topic))

    def publish(self, topic: str, frame: bytes, retain: bool = False) -> None:
        order = Publish(topic, frame, retain, packet_bytes(topic, len(frame)))
        if problem := self._outbox.put(order):
            self._tell(Denied(topic, problem))

    def reject_connection(self, why: str) -> None:
        self._rejected = why
        self._outbox.wake()

    def flush(self, seconds: float) -> bool:
        """Whether the broker has taken all that was published, within this time."""
        return self._outbox.wait_until_empty(seconds)

    def close(self) -> None:
        """Give the broker a moment to take what was published, and leave in good order: no will is sent."""
        self.flush(LEAVE_SECONDS)
        self._end()
        self.kill()  # which finds nothing left to do, unless the network is stuck

    def kill(self) -> None:
        """What a power cut does: the socket goes without a DISCONNECT, and the broker sends the will."""
        self._killed = True
        self._end()

    def _end(self) -> None:
        self._reconnect.stop()
        self._outbox.wake()
        if self._reconnect.join(LEAVE_SECONDS):
            self._outbox.close()

    @never_raises
    def _tell(self, item: Item) -> None:
        self._inbox.put(item)

    # From here on all runs on the network thread: first one connection, then what paho calls.

    def _connection(self) -> ConnectionEnd:
        self._ending, self._accepted, self._denied, self._paho_errors.last = None, False, "", None
        self._rejected = ""
        try:
            self._open_connection()
            self._pump()
        except OSError as error:
            self._ending = self._explained(error)
        except BrokerError as error:  # TLS files that cannot be used any more
            self._ending = ConnectionEnd(f"{self._broker}: {error}")
        except Exception as error:  # noqa: BLE001 - it is logged there
            # paho raises over packets that no broker should send: that ends the connection, and not this thread.
            self.errors.caught(f"the connection to {self._broker}")
            self._ending = ConnectionEnd(f"{self._broker}: the connection broke ({error!r})")
        self._hang_up()
        return self._ending or ConnectionEnd(f"{self._broker}: the connection was lost")

    def _open_connection(self) -> None:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._session_seconds
        host, port, clean = self._broker.host, self._broker.port, self._clean_start
        self._client.connect(host, port, KEEPALIVE_SECONDS, clean_start=clean, properties=properties)

    def _pump(self) -> None:
        """Move bytes until the connection ends."""
        if (sock := self._client.socket()) is None:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._outbox, selectors.EVENT_READ)
            key = selector.register(sock, selectors.EVENT_READ)
            while self._client.socket() is not None and not self._killed:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._client.want_write() else 0)
                if events != key.events:
                    key = selector.modify(sock, events)
                # TLS decrypts whole records: no selector knows of what it has decrypted already.
                held = isinstance(sock, ssl.SSLSocket) and sock.pending() > 0
                selector.select(0 if held else 1)
                if self._rejected:
                    self._ending = ConnectionEnd(f"{self._broker}: {self._rejected}")
                    return
                self._step()

    def _step(self) -> None:
        """All that can be done without waiting; nothing here blocks."""
        self._outbox.clear_wake()
        self._client.loop_read()
        while self._client.socket() is not None and (order := self._outbox.take()) is not None:
            self._execute(order)
        if self._reconnect.stopped and not self._killed:
            self._client.disconnect()
        if self._client.want_write():
            self._client.loop_write()
        self._client.loop_misc()

    @never_raises
    def _execute(self, order: Order) -> None:
        match order:
            case Publish(topic, frame, retain):
                self._outbox.sent(self._client.publish(topic, frame, 1, retain).mid, topic)
            case Subscribe(topic):
                self._ask_for(topic)
            case Unsubscribe(topic):
                self._client.unsubscribe(topic)

    def _ask_for(self, topic: str) -> None:
        _, mid = self._client.subscribe(topic, qos=1)
        if mid is not None:
            self._asked[mid] = topic

    def _hang_up(self) -> None:
        self._outbox.connection_lost()
        self._asked.clear()
        self._client.drop_out_messages()
        if (sock := self._client.socket()) is not None:
            sock.close()

    def _explained(self, error: OSError) -> ConnectionEnd:
        return ConnectionEnd(f"{self._broker}: {explain(self._broker, error)}")

    def _refused(self, reason: ReasonCode) -> ConnectionEnd:
        known = FINAL_REASONS.get(reason.value)
        final = known is not None and not (reason.value == TAKEN_OVER and self._returns())
        advice = f"{known}; " if known else ""
        return ConnectionEnd(f"{self._broker}: {advice}it said {reason} ({reason.value})", final)

    def _paho(self, client_id: str) -> Client:
        client = Client(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5)
        client.max_inflight_messages_set(0)  # the outbox keeps the window, as it knows what the broker takes
        client.connect_timeout = CONNECT_SECONDS
        client.enable_logger(self._paho_errors.logger())
        if self._broker.tls is not None:
            client.tls_set_context(rereading_context(self._broker.tls))
        client.username_pw_set(self._broker.username, self._broker.password)
        client.on_socket_open = lambda _c, _d, sock: finish_handshake(sock)
        client.on_connect = self._connected
        client.on_message = self._arrived
        client.on_publish = self._acknowledged
        client.on_subscribe = self._subscribed
        client.on_disconnect = self._disconnected
        return client

    @never_raises
    def _connected(self, _c: object, _d: object, _f: object, code: ReasonCode, told: object) -> None:
        if code.is_failure:
            self._ending = self._refused(code)
            return
        max_packet = getattr(told, "MaximumPacketSize", MAX_PACKET)
        receive_max = getattr(told, "ReceiveMaximum", RECEIVE_MAX)
        self._accepted = True
        self._outbox.connected(min(WINDOW, receive_max), max_packet)
        for topic in list(self._topics):  # every time: a broker that restarted has forgotten them
            self._ask_for(topic)
        self._tell(Connected(max_packet, receive_max))

    @never_raises
    def _arrived(self, _c: object, _d: object, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:  # a broker may say anything, as often as it likes
            return
        self._tell(Arrived(topic, bytes(message.payload)))

    @never_raises
    def _acknowledged(self, _c: object, _d: object, mid: int, code: ReasonCode, _p: object) -> None:
        topic = self._outbox.acknowledged(mid)
        if topic is not None and code.is_failure:  # 16, nobody listens, is none
            self._denied = f"after it refused {topic}"  # Mosquitto 2.0.11 then hangs up
            self._tell(Denied(topic, f"the broker did not pass it on: {code} ({code.value})"))

    @never_raises
    def _subscribed(self, _c: object, _d: object, mid: int, codes: list[ReasonCode], _p: object) -> None:
        topic = self._asked.pop(mid, None)
        if topic is not None and codes[0].is_failure:
            self._tell(Denied(topic, f"the broker does not let us listen: {codes[0]} ({codes[0].value})"))

    @never_raises
    def _disconnected(self, _c: object, _d: object, by: DisconnectFlags, code: ReasonCode, _: object) -> None:
        if self._ending is not None:
            return  # CONNACK has said why
        if by.is_disconnect_packet_from_server:
            self._ending = self._refused(code)
        elif self._accepted:
            why = self._denied or getattr(self._paho_errors.last, "strerror", None) or code
            self._ending = ConnectionEnd(
                f"{self._broker}: connection lost ({why})", without_disconnect=not self._denied
            )
        else:
            self._ending = self._explained(self._paho_errors.last or ConnectionResetError())
