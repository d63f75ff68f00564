"""The observers of a run: journal, rounds.jsonl, metrics and events. They do not make decisions."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.models.best import GLOBAL, BestModel
from protofleet.coordinator.observe.journal import SEEN, Journal, Sink
from protofleet.coordinator.observe.log_lines import LogLines
from protofleet.coordinator.observe.metrics import Metrics
from protofleet.coordinator.observe.record import RoundRecord, record_of
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.coordinator.observe.summary import summarise
from protofleet.coordinator.observe.summary_file import write_summary
from protofleet.coordinator.page.live_page import LivePage, no_budget
from protofleet.coordinator.page.page_state import MOST_ROUNDS
from protofleet.coordinator.page.process_page import ProcessPage
from protofleet.coordinator.run import Run
from protofleet.coordinator.spool.older_copies import require_newest

log = logging.getLogger("protofleet.coordinator")

# Shows the registry of a run while the `with` lasts.
Show = Callable[[CollectorRegistry], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def observed(
    run: Run,
    settings: CoordinatorSettings,
    folder: Path,
    software: str,
    events: bool,
    show: Show,
    built: Mapping[str, str] | None = None,
    process_page: ProcessPage | None = None,
    in_queue: bool = False,
) -> Iterator[Callable[[], None]]:
    """Observe a run; yield a function that writes the summary at the end of the run.

    The function writes no summary if the process was stopped before the run was over. `show` shows the metrics of the
    run on the page of the process. `process_page` is the live page, if there is one. `in_queue` is true if the
    coordinator conducts several runs, so that each event names its run.
    """
    view, disk = run.view, run.spool.disk
    file = folder / "rounds.jsonl"
    ended_at = file.stat().st_mtime if file.exists() else 0.0
    rounds = RoundsFile(file, disk, view.newest_round)
    require_newest(run.spool, rounds.last)
    metrics = Metrics(view)
    metrics.restore(map(record_of, rounds.records), ended_at)
    lines = LogLines(view.plan.variant.reports, lambda: view.rounds_planned)
    sinks: list[Sink] = [rounds, metrics, lines, *([Events(view.name if in_queue else "")] if events else [])]
    if view.plan.variant.reports == GLOBAL:
        sinks.append(BestModel(run.spool, rounds.records))

    def finish() -> None:
        if not view.stopped:
            found = summarise(view, settings, rounds.records, software, built or {})
            write_summary(folder / "summary.json", found, disk)

    with contextlib.ExitStack() as served:
        served.enter_context(show(metrics.registry))
        run.tell_of_devices(metrics.heard_from)
        if process_page is not None:
            earlier = map(record_of, rounds.records[-MOST_ROUNDS:])
            budget_of = run.budget.of_device if run.budget else no_budget
            page = LivePage(view, process_page, earlier, budget_of=budget_of)
            served.callback(page.end)

            def heard_from(device: str) -> None:
                metrics.heard_from(device)
                page.heard_from(device)

            run.tell_of_devices(heard_from)
            run.tell_of_refusals(page.refused)
            sinks.append(page)
        keep_journal(run, sinks)
        yield finish


def keep_journal(run: Run, sinks: Sequence[Sink]) -> Journal:
    """Attach a new journal to the run, and return the journal."""
    journal = Journal(run.view, sinks, run.isolation)
    run.spool.open_round_traffic = journal.open_round_traffic
    run.tell_of_transfers(journal.transfer_progressed)
    run.observers.append(journal)
    return journal


class Events:
    """A sink of the journal that prints each entry as a line of JSON, for a program that reads these lines.

    The sink stops printing when that program has closed the pipe.
    """

    def __init__(self, run: str = "") -> None:
        """Set up the sink; each event has the key `run` if the coordinator conducts several runs."""
        self._read, self._run = True, {"run": run} if run else {}

    def entry(self, what: str, details: Mapping[str, Any]) -> None:
        if what != SEEN:
            self._say({"event": what, **details})

    def round_ended(self, record: RoundRecord) -> None:
        self._say({"event": "round", **asdict(record)})

    def _say(self, event: Mapping[str, Any]) -> None:
        if not self._read:
            return
        try:
            print(json.dumps({**event, **self._run}, allow_nan=False), flush=True)  # noqa: T201
        except BrokenPipeError:
            self._read = False
            log.warning(
                "the program that reads the events is gone: no more events are printed; the run goes on"
            )
            # Otherwise Python would try to write the rest of the buffer at its exit, and would fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
