"""Two runs on the same two devices, in which the messages about one update can be lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from protofleet.coordinator.devices.labels import DeviceLabels
from protofleet.coordinator.devices.selection import DeviceSelection
from protofleet.edge_client.conversation.answer_delivery import RESEND_SECONDS
from protofleet.protocol.link.base import unverified_header
from tests.support.few_methods import few_steps
from tests.support.several_runs import SECONDS, several_runs
from tests.support.small_federation import POLICY

DEVICES, TWO = ("device-0", "device-1"), "device-1"
# Each run needs both devices, so a run waits while one of them is absent.
RULES = replace(POLICY, rounds=400, quorum=2, cohort=2)
WORK_SECONDS = 3.0
# A device repeats a lost update once, and works for both runs in turn.
SOON = RESEND_SECONDS + 6 * WORK_SECONDS


class TwoRuns:
    """The runs `red` and `blue` on the same devices; `blue` takes only devices of the group "hall"."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ("red", "blue"), **more) -> None:
        plans = {name: replace(few_steps("fedavg").plan(RULES.rounds), seed=1) for name in names}
        select = {"blue": DeviceSelection(groups=("hall",))}
        self.simulation = several_runs(
            folder, plans, RULES, devices=2, selections=select, work_seconds=WORK_SECONDS, **more
        )
        self.service = self.simulation.service
        self.runs = dict(self.service.runs)
        self.two = self.simulation.agents[TWO]
        # Kind of the messages between the coordinator and TWO about `blue` that are lost -> number of lost messages.
        self.lost: dict[str, int] = {}
        self.updates = 0  # Number of updates for `blue` that TWO has sent.
        self._publish, self.simulation.broker.publish = self.simulation.broker.publish, self._published
        self.assign(*DEVICES)

    def _published(self, topic: str, frame: bytes, retain: bool) -> None:
        header = unverified_header(frame)
        kind = (
            header.kind
            if header and header.run == "blue" and TWO in (header.sender, header.recipient)
            else ""
        )
        self.updates += kind == "update"
        if kind in self.lost:
            self.lost[kind] += 1
        else:
            self._publish(topic, frame, retain)

    def assign(self, *devices: str) -> None:
        """Put these devices, and no others, into the group "hall"."""
        labels = self.service.context.labels
        labels.clear()
        labels.update(dict.fromkeys(devices, DeviceLabels("hall")))
        self.service.selection_changed()

    def until(self, check: Callable[[], bool], limit: float = SECONDS) -> None:
        self.simulation.run(until=check, limit=limit)
        assert check()

    def go_on(self, *names: str, limit: float = SECONDS) -> None:
        """Wait until each of these runs has closed two more rounds with both devices."""
        runs = [self.runs[name] for name in names]
        rounds = [run.machine.round + 2 for run in runs]
        self.until(
            lambda: all(run.machine.round >= round for run, round in zip(runs, rounds, strict=True)), limit
        )
        assert all(run.machine.roster == set(DEVICES) for run in runs)

    # Moments of an update of TWO for `blue`.

    def computes(self) -> None:
        self.until(lambda: self.two.places.working == "blue")

    def has_sent(self) -> None:
        """Lose the update, until `lost` is emptied."""
        self.lost = {"update": 0}
        self.until(lambda: self.lost["update"] == 1)

    def lacks_receipt(self) -> None:
        """Lose the receipt of the update, until `lost` is emptied."""
        self.lost = {"receipt": 0}
        self.until(lambda: self.lost["receipt"] == 1)


MOMENTS = (TwoRuns.computes, TwoRuns.has_sent, TwoRuns.lacks_receipt)
