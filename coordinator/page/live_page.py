"""The sink of the journal that keeps the state of a run on the page, and publishes each change as an event."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from protofleet.coordinator.attendance import here_words
from protofleet.coordinator.observe.journal import SEEN
from protofleet.coordinator.observe.record import RoundRecord
from protofleet.coordinator.observe.view import RunView
from protofleet.coordinator.page.page_state import (
    MOST_DEVICES,
    MOST_ROUNDS,
    PageState,
    Row,
    device_row,
    figures_row,
    round_row,
    short,
)
from protofleet.coordinator.page.process_page import ProcessPage
from protofleet.protocol.link.meter import human_bytes
from protofleet.protocol.wire.names import EVALUATE

HEARD_SECONDS: Final = 5.0  # Seconds between two events with the times of the devices' last messages.
MOST_HEARD: Final = 256  # Largest number of devices in one such event.
NOT_HERE: Final = "not here yet"


def no_budget(device: str) -> Mapping[str, Sequence[int]]:
    return {}


class LivePage:
    def __init__(
        self, run: RunView, process: ProcessPage, rounds: Iterable[RoundRecord] = (),
        clock: Callable[[], float] = time.time, budget_of: Callable[[str], Mapping[str, Sequence[int]]] = no_budget,
    ) -> None:  # fmt: skip
        """Show the run on the page.

        `rounds` are the rounds that earlier processes of this run have ended. `budget_of` returns the bytes of a
        device and the largest number of bytes, for each limit of the budget.
        """
        self._run, self._clock, self._view = run, clock, run.plan.variant.reports
        self.process, self._budget_of = process, budget_of
        self._phase, self._answered, self._asked, self._since = "", 0, 0, clock()
        self._here, self._end = len(run.roster), ""
        self._heard: dict[str, float] = {}
        self._fresh: dict[str, float] = {}  # The part of `_heard` that no event has told yet.
        self._told_at = clock()
        names = sorted(run.enrolled | run.roster)[:MOST_DEVICES]
        devices = {
            name: device_row(name, run.domains.get(name, ""), self._first_state(name)) for name in names
        }
        earlier = tuple(round_row(record, self._view) for record in rounds)[-MOST_ROUNDS:]
        self._state = PageState(self._run_row(), earlier, devices, {}, {})
        process.begin_run(self._state)

    def end(self) -> None:
        """Keep the last state of the run on the page until later runs take its place."""
        row = {**self._state.run, "closed": True}
        self._publish("run", row, run=row)
        self.process.end_run(self._run.name)

    def _first_state(self, name: str) -> str:
        return "present" if name in self._run.roster else NOT_HERE

    # Methods of a sink of the journal.

    def entry(self, what: str, details: Mapping[str, Any]) -> None:
        if what == SEEN:
            return
        self._here = details.get("roster", self._here) - details.get("unsteady", 0)
        self._note_device(what, details)
        match what:
            case "asked":
                self._phase, self._answered, self._asked = details["phase"], 0, len(details["cohort"])
                self._since = self._clock()
            case "answered":
                # Not a count of our own: an earlier process may have accepted some of the updates.
                self._answered = len(self._run.answered)
            case "finished":
                early = self._run.ended_early
                self._end = (
                    f"ended early: {early}" if early else f"all {self._run.rounds_planned} rounds are done"
                )
            case "diverged":
                self._end = f"the run cannot continue: {details['reason']}"
        self._refresh_run()

    def round_ended(self, record: RoundRecord) -> None:
        row = round_row(record, self._view)
        earlier = tuple(one for one in self._state.rounds if one["round"] != row["round"])
        self._publish("round", row, rounds=(*earlier, row)[-MOST_ROUNDS:])
        self._tell_figures(record)
        self._refresh_run()

    def _tell_figures(self, record: RoundRecord) -> None:
        """Publish the figures of the devices for which they have changed."""
        known, used = self._state.figures, self._budget_of
        found = {
            name: {**known.get(name, {}), **figures_row(record, name, used(name))}
            for name in self._state.devices
        }
        if changed := {name: row for name, row in found.items() if row != known.get(name, {})}:
            rows = [{"name": name, **row} for name, row in changed.items()]
            self._publish("device", {"rows": rows}, figures={**known, **changed})

    # Functions that a run calls for its devices.

    def heard_from(self, device: str) -> None:
        now = self._clock()
        if device in self._state.devices:
            self._heard[device] = self._fresh[device] = now
        if now - self._told_at >= HEARD_SECONDS:
            self._told_at = now
            self._tell_heard()

    def _tell_heard(self) -> None:
        self._state = replace(self._state, heard=dict(self._heard))
        self.process.replace(self._state)
        told, self._fresh = [*self._fresh.items()][:MOST_HEARD], {}
        if self.process.ring.is_watched:
            self._publish(
                "device", {"rows": [{"name": device, "heard": round(at, 1)} for device, at in told]}
            )

    def refused(self, device: str, reason: str) -> None:
        self._set_device(device, "refused", reason)
        self._refresh_run()

    # Methods that change the state.

    def _note_device(self, what: str, details: Mapping[str, Any]) -> None:
        device, reason = details.get("device", ""), details.get("reason", "")
        match what:
            case "joined":
                self._set_device(device, "present")
            case "left":
                self._set_device(device, "left", reason)
            case "asked":
                self._set_devices({name: device_row(name, details["domains"].get(name, ""), "working")
                                   for name in details["cohort"]})  # fmt: skip
            case "transfer":
                came, size = human_bytes(details["bytes"]), human_bytes(details["size"])
                self._set_device(device, "sending", f"{came} of {size} are here")
            case "answered" | "returned":
                self._set_device(device, "answered")
            case "dropped":
                self._set_device(device, f"answer {details['verdict']}", reason)
            case "aside" | "went_back":
                self._set_device(device, "answer put aside", reason)
            case "finished" | "diverged":
                here = {n: device_row(n, row["domain"], "finished") for n, row in self._state.devices.items()
                        if n in self._run.roster}  # fmt: skip
                self._set_devices(here)

    def _set_device(self, name: str, state: str, reason: str = "") -> None:
        domain = self._run.domains.get(name, "")
        self._set_devices({name: device_row(name, domain, state, reason)})

    def _set_devices(self, rows: Mapping[str, Row]) -> None:
        known = self._state.devices
        room = MOST_DEVICES - len(known)
        changed = {name: row for name, row in rows.items() if name in known and known[name] != row}
        new = [name for name in rows if name not in known][: max(0, room)]
        changed |= {name: rows[name] for name in new}
        if changed:
            self._publish("device", {"rows": [*changed.values()]}, devices={**known, **changed})

    def _refresh_run(self) -> None:
        row = self._run_row()
        if row != self._state.run:
            self._publish("run", row, run=row)

    def _run_row(self) -> Row:
        run = self._run
        state, words, until = self._stage()
        asks = state == "running"
        return {
            "run": run.name, "federation": run.federation, "method": run.plan.method_words, "view": self._view,
            "state": state, "words": short(words), "misfits": short(run.misfits), "until": until, "round": run.round,
            "planned": run.rounds_planned, "phase": self._phase if asks else "", "asked": self._asked if asks else 0,
            "answered": self._answered if asks else 0, "since": round(self._since, 1), "present": self._here,
            "held": bool(run.paused), "closed": False,
        }  # fmt: skip

    def _stage(self) -> tuple[str, str, float]:
        """Return the state of the run, its description, and the Unix time until which the run pauses, or 0."""
        run = self._run
        if self._end:
            return "ended", self._end, 0.0
        if run.paused:
            return ("paused" if run.is_gathering else "pausing"), run.paused, 0.0
        if wait := run.budget.wait if run.budget else None:
            return "paused", wait.words, wait.until
        if run.next_round_at:
            words = (
                f"round {run.round} of {run.rounds_planned} waits for policy.pause_seconds or policy.hours"
            )
            return "paused", words, run.next_round_at
        if run.waits_for_devices:
            return (
                "waiting",
                here_words(self._here, run.policy, first=(run.round, run.attempt) == (1, 0)),
                0.0,
            )
        return "running", self._place(), 0.0

    def _place(self) -> str:
        run = self._run
        if run.is_last_evaluation or run.round > run.rounds_planned:
            return "final evaluation"
        if self._phase == EVALUATE:
            return f"evaluation before round {run.round} of {run.rounds_planned}"
        return f"round {run.round} of {run.rounds_planned}"

    def _publish(self, kind: str, data: Mapping[str, Any], **changes: Any) -> None:
        self._state = replace(self._state, **changes)
        self.process.publish(kind, data, self._state)
