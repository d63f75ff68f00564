"""A simulation whose coordinator has several runs, and whose devices take part in all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.selection import DeviceSelection
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.run import Run
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.spool.spool import Spool
from protofleet.edge_client.state.device import DeviceState
from protofleet.lab.simulation.federation import Simulation
from protofleet.methods.contract.bridge import to_torch
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.wire.names import COORDINATOR
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import shard

SECONDS = 600.0  # Virtual seconds in which each of these simulations ends.
LAST_SECONDS = 5.0  # Virtual seconds in which the devices receive the end of the runs.


@dataclass
class SeveralRuns(Simulation):
    """A simulation whose coordinator has several runs, by name; `plan` is not used.

    A run takes all devices, or those of its selection.
    """

    plans: Mapping[str, Plan] = field(default_factory=dict)
    selections: Mapping[str, DeviceSelection] = field(default_factory=dict)
    stays: bool = True
    one_run: Collection[str] = ()  # Devices that take part in one run at a time.

    def boot_device(self, device: str) -> None:
        most = self.runs
        self.runs = 1 if device in self.one_run else most
        super().boot_device(device)
        self.runs = most

    def boot_coordinator(self) -> None:
        disk = self.boot_coordinator_host()
        spools = {name: Spool(self.folder / name, disk=disk) for name in self.plans}
        # As the coordinator of a queue does it, all folders are claimed with one epoch.
        for name, made in self.plans.items():
            spools[name].start_run(name, made.encode().decode(), self.boots, exactly=self.boots)
        context = self.connect_coordinator(self.boots, disk, self.folder / "coordinator")
        runs = [self._new_run(name, spools[name], context) for name in self.plans]
        self.serve(CoordinatorService(context, runs, self.stays))

    def _new_run(self, name: str, spool: Spool, context: ProcessContext) -> Run:
        made = self.plans[name]
        machine, part = (
            RoundMachine(self.policy, made.rounds, made.seed),
            CoordinatorRunLink(context.link, name, spool.store),
        )
        return Run(made, machine, spool, context, part, selection=self.selections.get(name))

    def close_run(self, name: str) -> None:
        """Close a run that continues later, as the coordinator of a queue does it."""
        run = self.service.runs[name]
        self.service.paused = (*self.service.paused, name)
        self.service.remove(name)
        run.spool.close()

    def open_run(self, name: str) -> Run:
        """Open a closed run from its disk, and return it."""
        context = self.service.context
        self.service.paused = tuple(one for one in self.service.paused if one != name)
        spool = Spool(self.folder / name, disk=self.make_disk(COORDINATOR))
        spool.start_run(name, self.plans[name].encode().decode(), self.boots, exactly=self.boots)
        run = self._new_run(name, spool, context)
        self.service.add(run, starts=False)
        return run

    @property
    def over(self) -> bool:
        return all(run.view.over for run in self.service.runs.values())

    def to_the_end(self) -> SeveralRuns:
        """Run until all runs are over and the devices know it."""
        self.run(until=lambda: self.over, limit=SECONDS)
        assert self.over and not self.service.stopped
        self.run(until=lambda: False, limit=LAST_SECONDS)
        return self

    def learned(self, run: str) -> dict[str, torch.Tensor]:
        """Return all that a run has learned: the state of the server half, and of its half on each device."""
        states = {"server": self.service.runs[run].server_runner.server.state()}
        for device in self.agents:
            state = DeviceState(self.folder / device, durable=False).of(run)
            if state.saved.run == run:
                states[device] = to_torch(state.half() or {})
        return {
            f"{who}/{key}": value.clone() for who, state in states.items() for key, value in state.items()
        }


def several_runs(
    folder: Path, plans: Mapping[str, Plan], policy: RunPolicy, devices: int = 3, runs: int = 2, **more
) -> SeveralRuns:
    shards = {f"device-{i}": shard(i) for i in range(devices)}
    first = next(iter(plans.values()))
    return SeveralRuns(first, shards, policy, folder, plans=plans, runs=runs, **more)


def assert_learned_the_same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key
