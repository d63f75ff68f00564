"""Define all topics of the wire in one table, from which names, subscriptions and access rules are derived."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from protofleet.protocol.wire.names import COORDINATOR, NAME, TopicParty, valid_device, valid_name

PREFIX: Final = "protofleet/1"
LONGEST: Final = 80  # largest number of letters after a topic's prefix; a longer topic is invalid
# Largest number of parsed topics in the cache. The topic of a frame is parsed several times.
MOST_PARSED: Final = 4096

Kind: TypeAlias = Literal[
    "coord_state", "device_state", "round", "down", "up", "now", "bcast", "op_up", "op_down", "coord_probe"
]


@dataclass(frozen=True, slots=True)
class TopicRule:
    """A rule about one kind of topic.

    In the pattern, `{device}` stands for the only device or operator that writes or reads the topic. `{digest}`
    stands for the `wire_name` of a broadcast in hexadecimal digits.
    """

    kind: Kind
    pattern: str
    writer: TopicParty
    reader: TopicParty
    # True if the writer also receives the messages on this topic. So the writer notices if another party sends
    # messages under the writer's name.
    echoes: bool = False
    # True if this version does not use the topic, but devices of minor version 0 subscribe to it.
    retired: bool = False
    more_readers: tuple[TopicParty, ...] = ()


TOPIC_RULES: Final = (
    TopicRule("coord_state", "coord/state", "coordinator", "device", echoes=True, more_readers=("standby",)),
    TopicRule("device_state", "dev/{device}/state", "device", "coordinator"),
    TopicRule("round", "round", "coordinator", "device", retired=True),
    TopicRule("down", "down/{device}", "coordinator", "device"),
    TopicRule("up", "up/{device}", "device", "coordinator"),
    TopicRule("now", "bcast/now", "coordinator", "device"),
    TopicRule("bcast", "bcast/{digest}", "coordinator", "device"),
    TopicRule("op_up", "op/up/{device}", "operator", "coordinator"),
    TopicRule("op_down", "op/down/{device}", "coordinator", "operator"),
    TopicRule("coord_probe", "coord/probe", "standby", "coordinator"),
)

_DIGEST: Final = r"[0-9a-f]{16,64}"
_SHAPES: Final = tuple(
    (row.kind, re.compile(row.pattern.format(device=f"(?P<device>{NAME})", digest=f"(?P<digest>{_DIGEST})")))
    for row in TOPIC_RULES
)


@dataclass(frozen=True, slots=True)
class ParsedTopic:
    """The parts of a topic. The header of a message on this topic must agree with these parts."""

    kind: Kind
    device: str = ""  # name of the device or the operator
    digest: str = ""


class Topics:
    """The topics of one federation."""

    def __init__(self, federation: str) -> None:
        self.federation = valid_name(federation)
        self.prefix = f"{PREFIX}/{federation}/"

    @property
    def coord_state(self) -> str:
        return self._topic("coord_state")

    @property
    def coord_probe(self) -> str:
        """Return the topic on which a coordinator's process asks, before it leads, whether another one leads."""
        return self._topic("coord_probe")

    @property
    def round(self) -> str:
        return self._topic("round")

    @property
    def broadcast_now(self) -> str:
        """Return the topic on which devices receive broadcasts of one block without a request."""
        return self._topic("now")

    def device_state(self, device: str) -> str:
        return self._topic("device_state", device=valid_device(device))

    def down(self, device: str) -> str:
        return self._topic("down", device=valid_device(device))

    def up(self, device: str) -> str:
        return self._topic("up", device=valid_device(device))

    def broadcast(self, hash_hex: str) -> str:
        if not re.fullmatch(_DIGEST, hash_hex):
            raise ValueError(
                f"{hash_hex!r} is no hash; the name of a broadcast has 16 to 64 of the digits 0-9 a-f"
            )
        return self._topic("bcast", digest=hash_hex)

    def device_subscriptions(self, device: str) -> tuple[str, ...]:
        """Return the topics that a device always receives.

        A device subscribes to the topic of a broadcast only while it fetches the broadcast.
        """
        mine = valid_device(device)
        rows = [
            row for row in TOPIC_RULES if row.reader == "device" and row.kind != "bcast" and not row.retired
        ]
        return tuple(self.prefix + row.pattern.format(device=mine) for row in rows)

    def coordinator_subscriptions(self) -> tuple[str, ...]:
        """Return the topics that each coordinator receives. An enrolled coordinator receives commands too."""
        received = ("coordinator", "device", "standby")
        rows = [
            row
            for row in TOPIC_RULES
            if row.writer in received and (row.reader == "coordinator" or row.echoes)
        ]
        return tuple(self.prefix + row.pattern.format(device="+") for row in rows)

    def standby_subscriptions(self) -> tuple[str, ...]:
        """Return the topics that a coordinator's process receives before it leads."""
        rows = [row for row in TOPIC_RULES if "standby" in (row.reader, *row.more_readers)]
        return tuple(self.prefix + row.pattern for row in rows)

    @property
    def all_commands(self) -> str:
        """Return the subscription to the commands of all operators."""
        return self._topic("op_up", device="+")

    def commands_of(self, operator: str) -> str:
        return self._topic("op_up", device=valid_device(operator))

    def results_of(self, operator: str) -> str:
        """Return the topic of the results of an operator's commands."""
        return self._topic("op_down", device=valid_device(operator))

    def parse(self, topic: str) -> ParsedTopic | None:
        """Return the parts of a topic of this federation, or None."""
        rest = topic.removeprefix(self.prefix)
        return _parsed(rest) if len(rest) < len(topic) <= len(self.prefix) + LONGEST else None

    def _topic(self, kind: Kind, **parts: str) -> str:
        pattern = next(row.pattern for row in TOPIC_RULES if row.kind == kind)
        return self.prefix + pattern.format(**parts)


@lru_cache(MOST_PARSED)
def _parsed(rest: str) -> ParsedTopic | None:
    for kind, shape in _SHAPES:
        if found := shape.fullmatch(rest):
            return _place(kind, found.groupdict())
    return None


def _place(kind: Kind, parts: dict[str, str]) -> ParsedTopic | None:
    place = ParsedTopic(kind, **parts)
    return None if place.device == COORDINATOR else place
