"""One queue after another under faults: each has runs of different methods that are conducted at the same time."""

from __future__ import annotations

from pathlib import Path

from protofleet.lab.local.experiment import Experiment
from tests.chaos.campaign import HASTY, PATIENT, Campaign, RunKind
from tests.chaos.queue_world import QueueWorld
from tests.chaos.world import World

# Two runs are conducted at a time. The third run begins when one of them is over.
NAMES = ("red", "blue", "late")
LATE_PART = 4  # The third run has this part of the rounds.
FEDAVG: RunKind = ("fedavg", HASTY, {"epochs": 2, "batch": 8}, "small")
FEDPLCC: RunKind = ("fedplcc", PATIENT, {"epochs": 1, "batch": 8, "lambda1": 1.0}, "off")
FEDPALL: RunKind = ("fedpall", PATIENT, {"epochs": 1, "batch": 8, "server_epochs": 1}, "off")
PLAIN: RunKind = ("fedavg", PATIENT, {"epochs": 2, "batch": 8}, "off")
QUEUES: tuple[tuple[RunKind, ...], ...] = (
    (FEDAVG, FEDPLCC, PLAIN),
    (FEDPALL, PLAIN, FEDAVG),
    (PLAIN, FEDPLCC, FEDPALL),
)


class QueueCampaign(Campaign):
    queues = QUEUES
    run_names = NAMES

    def choose(self, method: str) -> None:
        self.queues = tuple(
            kinds for kinds in self.queues if not method or method in [run[0] for run in kinds]
        )

    def world(self, folder: Path, number: int) -> World:
        made = self.experiments(number)
        return QueueWorld(folder, f"chaos-{number}", made, self.lines, self.port, self.network)

    def experiments(self, number: int) -> list[Experiment]:
        kinds = self.queues[(number - 1) % len(self.queues)]
        rounds = (self.rounds, self.rounds, max(1, self.rounds // LATE_PART))
        return [
            self.experiment_of(kind, number, name, count, seed=100 * place)
            for place, (kind, name, count) in enumerate(zip(kinds, NAMES, rounds, strict=True))
        ]

    def books(self, world: World) -> list[str]:
        assert isinstance(world, QueueWorld)
        self.outcome.refused += world.refused
        return [*world.violations(), *super().books(world)]
