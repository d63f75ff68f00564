"""The program `protofleet`, which logs its state on SIGUSR2: for runs that do not end."""

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
    found = [f"connected {a.view.connected}, wakes in {a.wake_at - time.monotonic():.1f} s"]
    for one in a.places.followers:
        queue = one.tasks.queue
        found += [
            f"{one.run.name}: at work on {queue.busy_with[:8] or 'nothing'}, next {queue.next}, "
            f"waiting {one.tasks.delivery.pending}",
            f"{one.run.name}: fetching {fetch(one.link._fetch)} for {one.link._waiting}",
        ]
    return [*found, *line(a.link)]


def service(s: CoordinatorService) -> list[str]:
    found = [f"wakes in {s.wake_at - time.monotonic():.1f} s, paused {sorted(s.paused)}"]
    for name, run in s.runs.items():
        m = run.machine
        found += [
            f"{name}: {m.stage} of round {m.round}, attempt {m.attempt}, asked {m.asked!r}, "
            f"missing {sorted(m._missing)}, roster {sorted(m.roster)}",
            *(
                f"{name}: serves {hex8(b.manifest.wire_name)} to {sorted(b._cohort)}"
                for b in run.link.tasks._broadcasts.values()
            ),
            *(f"{name}: of {who}: {fetch(held[0])}" for who, held in run.link.answers.fetches.items()),
        ]
    return [*found, *line(s.link, *(run.link for run in s.runs.values()))]


def line(link: Any, *parts: Any) -> list[str]:
    """Return the state of the connection, and the messages of the link or of its parts."""
    transport = link.transport
    box = transport._outbox
    found = [
        f"open {box._open}, waiting {len(box._waiting)}, in flight {len(box._in_flight)}, {transport._topics}"
    ]
    for part in parts or [link]:
        counts = sorted(part.meter.messages.items())
        found.append(", ".join(f"{' '.join(key)} {n}" for key, n in counts))
    return found


def fetch(f: ObjectFetch | None) -> str:
    if f is None:
        return "nothing"
    here, wake = sum(f.partial.have), f.wake_at - time.monotonic()
    name, blocks = hex8(f.manifest.wire_name), len(f.partial.have)
    return f"{name}: {here} of {blocks}, asked {len(f.asked)}, again in {wake:.1f} s"


def hex8(name: bytes) -> str:
    return name.hex()[:8]


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, tell)
    program()
