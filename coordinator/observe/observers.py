"""Everybody who watches a run without deciding anything: journal, rounds.jsonl, ledger, metrics, events."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.observe.journal import SEEN, Journal, RoundFile, RoundRecord, Sink
from protofleet.coordinator.observe.ledger import Ledger
from protofleet.coordinator.observe.metrics import Metrics
from protofleet.coordinator.observe.summary import summarise, write_summary
from protofleet.coordinator.observe.view import RunView, Watcher
from protofleet.coordinator.spool.older_copies import demand_newest
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.parts.weights import weights_of
from protofleet.protocol.wire.arrays import parts
from protofleet.runtime.health import Check
from protofleet.runtime.host_metrics import Place

log = logging.getLogger("protofleet.coordinator")


@contextlib.contextmanager
def observed(
    service: RunView,
    settings: CoordinatorSettings,
    folder: Path,
    software: str,
    events: bool,
    checks: Mapping[str, Check] | None = None,
) -> Iterator[list[Watcher]]:
    """The watchers of a run; a run that ends by itself leaves its summary."""
    epoch, spool = service.link.epoch, service.spool
    ledger = Ledger(folder / "ledger.sqlite", epoch, software, service.plan.encode().decode())
    rounds = RoundFile(folder / "rounds.jsonl", spool.disk, spool.furthest, ledger.records())
    demand_newest(spool, rounds.last)
    metrics = Metrics(service)
    metrics.registry.register(Place(software, "coordinator", folder, settings.broker))
    sinks: list[Sink] = [rounds, ledger, metrics, *([Events()] if events else [])]
    with metrics.exposed(settings.endpoint(), checks):
        yield [Journal(service, sinks, model_bytes(service))]
    ledger.close()
    if not service.stopped:
        write_summary(
            folder / "summary.json",
            summarise(service, settings, rounds.records, software),
            service.spool.disk,
        )


def model_bytes(service: RunView) -> int:
    """What one device would send for FedAvg: the same network's weights, really encoded once."""
    return sum(size for _, size in parts(to_numpy(weights_of(service.server_runner.server.model))))


class Events:
    """What happens, as JSON lines on standard output, for whoever shows it and as long as there is one."""

    def __init__(self) -> None:
        self._read = True

    def moment(self, what: str, details: Mapping[str, Any]) -> None:
        if what != SEEN:
            self._say({"event": what, **details})

    def round_ended(self, record: RoundRecord) -> None:
        self._say({"event": "round", **asdict(record)})

    def _say(self, event: Mapping[str, Any]) -> None:
        if not self._read:
            return
        try:
            print(json.dumps(event, allow_nan=False), flush=True)  # noqa: T201
        except BrokenPipeError:
            self._read = False
            log.warning("nobody reads the events any more: no more are printed; the run goes on")
            # What is left in the buffer would be flushed at the end, and fail there.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
