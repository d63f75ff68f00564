"""The program `protofleet`, which logs its state on SIGUSR1: for runs that do not come to their end."""

from __future__ import annotations

import gc
import logging
import signal
import time
from typing import Any

from protofleet.cli.main import program
from protofleet.coordinator.service import CoordinatorService
from protofleet.edge_client.agent import Agent
from protofleet.protocol.link.fetch import ObjectFetch

log = logging.getLogger("protofleet.chaos")


def tell(number: int, frame: object) -> None:
    for party in [found for found in gc.get_objects() if isinstance(found, (Agent, CoordinatorService))]:
        for words in agent(party) if isinstance(party, Agent) else service(party):
            log.warning("%s", words)


def agent(a: Agent) -> list[str]:
    return [
        f"connected {a.view.connected}, at work on {a.tasks.queue.busy_with[:8] or 'nothing'}, "
        f"next {a.tasks.queue.next}, waiting {a.tasks.delivery.pending}",
        f"fetching {fetch(a.link._fetch)} for {a.link._waiting}; wakes in {a.wake_at - time.monotonic():.1f} s",
        *line(a.link),
    ]


def service(s: CoordinatorService) -> list[str]:
    m = s.run.machine
    state = (
        f"{m.stage} of round {m.round}, attempt {m.attempt}, asked {m.asked!r}, missing {sorted(m._missing)}"
    )
    served = [
        f"serves {hex8(b.manifest.wire_name)} to {sorted(b._invited)}"
        for b in s.run.link.tasks._broadcasts.values()
    ]
    fetches = [f"of {name}: {fetch(held[0])}" for name, held in s.run.link.answers.fetches.items()]
    return [
        state,
        f"roster {sorted(m.roster)}, wakes in {s.wake_at - time.monotonic():.1f} s",
        *served,
        *fetches,
        *line(s.run.link),
    ]


def line(link: Any) -> list[str]:
    transport = link.party.transport
    box = transport._outbox
    counts = ", ".join(f"{' '.join(key)} {n}" for key, n in sorted(link.meter.messages.items()))
    return [
        f"open {box._open}, waiting {len(box._waiting)}, in flight {len(box._in_flight)}, {transport._topics}",
        counts,
    ]


def fetch(f: ObjectFetch | None) -> str:
    if f is None:
        return "nothing"
    here, wake = sum(f.partial.have), f.wake_at - time.monotonic()
    name, blocks = hex8(f.manifest.wire_name), len(f.partial.have)
    return f"{name}: {here} of {blocks}, asked {len(f.asked)}, again in {wake:.1f} s"


def hex8(name: bytes) -> str:
    return name.hex()[:8]


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    program()
