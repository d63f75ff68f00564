"""Training in the process that has the data: the agent's own, or the child that the agent starts for it."""

from __future__ import annotations

from pathlib import Path

from protofleet.edge_client.compute import moved, set_torch
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.shard import load_shard
from protofleet.edge_client.limits import HalfBuilder
from protofleet.edge_client.trainer.deadline import Deadline
from protofleet.edge_client.trainer.job import LocalJob
from protofleet.methods.contract.plan import Plan


class LocalTrainer:
    def __init__(self, settings: DeviceSettings, deadline: Deadline | None = None) -> None:
        self.place = set_torch(settings)
        self.data = moved(load_shard(settings.data), self.place)
        self._settings, self._deadline = settings, deadline
        self._builder = HalfBuilder(
            settings.limits, self.data.train, settings.name, settings.network, self.place
        )

    def start(self, plan: Plan) -> LocalJob:
        return LocalJob(
            self._builder.build(plan), self.data, plan.variant.reports,
            snapshots=self._settings.pictures, folder=Path(self._settings.folder) / "pictures",
            deadline=self._deadline,
        )  # fmt: skip

    def limit(self, memory_bytes: int, seconds: float) -> None:
        """The agent's own memory has no limit, and its work has that of [limits]."""

    def stop(self) -> None:
        """It ends with this process."""
