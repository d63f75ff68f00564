"""Choose the node of a broker that a client connects to.

A broker of several nodes is a cluster. Each client begins at another node, so that the clients are spread over the
nodes. When a node fails, its clients go to the next one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protofleet.protocol.transport.reconnect import ConnectionEnd

LARGEST_PORT: Final = 65_535
FORM: Final = f"HOST:PORT with a port from 1 to {LARGEST_PORT}; an IPv6 address is in brackets"


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """The host and the port of a broker, or of one node of a cluster."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def nodes_in(hosts: Sequence[str]) -> tuple[BrokerNode, ...]:
    """Return the nodes of the setting `hosts`; raise ValueError if it is empty, or if an address is repeated."""
    if not hosts:
        raise ValueError('hosts is empty, it must name an address, such as "broker-1.example:8883"')
    nodes = tuple(_node(text) for text in hosts)
    seen = set[tuple[str, int]]()
    for node in nodes:
        if (key := (node.host.lower(), node.port)) in seen:
            raise ValueError(f"hosts is wrong, it names {node} twice; leave out one of the two")
        seen.add(key)
    return nodes


def _node(text: str) -> BrokerNode:
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        host = ""
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= len(str(LARGEST_PORT)) else 0
    host = demand_host(
        host[1:-1] if bracketed else host, f"hosts is wrong, {text!r} is not of the form {FORM}"
    )
    if not 0 < number <= LARGEST_PORT:
        raise ValueError(f"hosts is wrong, {text!r} is not of the form {FORM}")
    return BrokerNode(host, number)


def demand_host(host: str, problem: str) -> str:
    """Return a host's name or address; raise ValueError with the problem if no host can have it."""
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(problem) from None
    if not host:
        raise ValueError(problem)
    return host


def drawn_index(name: str, count: int) -> int:
    """Return a number below `count` that depends only on the name, and is spread evenly over all names."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % count


class NodeTurn:
    """The order in which a client tries the nodes: in turn, from the node that its name draws."""

    def __init__(self, nodes: Sequence[BrokerNode], name: str) -> None:
        self._nodes, self._at = nodes, drawn_index(name, len(nodes))
        # Node -> why it accepted no connection, since the last connection or the last full turn.
        self._failed: dict[BrokerNode, ConnectionEnd] = {}

    @property
    def node(self) -> BrokerNode:
        return self._nodes[self._at]

    @property
    def several(self) -> bool:
        return len(self._nodes) > 1

    def ended(self, ending: ConnectionEnd, was_accepted: bool) -> ConnectionEnd | None:
        """Choose the node of the next try. Return the end to report, or None if other nodes are to be tried first."""
        if not self.several:
            return ending
        failed = self.node
        self._at = (self._at + 1) % len(self._nodes)
        if was_accepted:
            self._failed.clear()
            return ending
        self._failed[failed] = ending
        if len(self._failed) < len(self._nodes):
            return None
        return self._full_turn()

    def _full_turn(self) -> ConnectionEnd:
        # The order of the setting, so that a log shows the same words after each turn.
        ends = [self._failed[node] for node in self._nodes]
        self._failed.clear()
        return ConnectionEnd(
            f"none of the {len(ends)} addresses of the broker accepts this client: "
            + "; ".join(end.reason for end in ends),
            final=all(end.final for end in ends),
            without_disconnect=all(end.without_disconnect for end in ends),
            taken_over=any(end.taken_over for end in ends),
        )
