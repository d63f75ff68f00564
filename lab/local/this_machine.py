"""Run the devices of a run in processes of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from protofleet.coordinator.round.policy import Policy
from protofleet.edge_client.compute import available_cores
from protofleet.edge_client.trainer.slots import Slots
from protofleet.federation.brokers.ports import LOOPBACK
from protofleet.lab.local.device_launcher import starter_of_devices
from protofleet.lab.local.device_processes import DeviceProcesses
from protofleet.lab.local.experiment import Experiment
from protofleet.lab.local.placement import Groups
from protofleet.lab.local.processes import Processes
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.runtime.children import Starter


class ThisMachine:
    """The site of a run without an engine."""

    host: Final = LOOPBACK

    def groups(self, experiment: Experiment, folder: Path, on_gpu: bool) -> Groups:
        return experiment.device_groups(available_cores(), on_gpu=on_gpu)

    def begun(self, folder: Path, groups: Groups) -> AbstractContextManager[ThisMachine]:
        return contextlib.nullcontext(self)

    def slots(self, folder: Path, groups: Groups) -> Slots:
        return slots_of(folder, len(groups))

    def policy(self, experiment: Experiment) -> Policy:
        return experiment.effective_policy

    def starter(
        self, starter: Starter, experiment: Experiment, groups: Groups
    ) -> AbstractContextManager[Starter]:
        return starter_of_devices(starter, experiment.shards, len(groups))

    def placement(
        self,
        groups: Groups,
        processes: Processes,
        starter: Starter,
        broker: BrokerAddress,
        say: Callable[[str], None],
    ) -> DeviceProcesses:
        return DeviceProcesses.of([tuple(group) for group in groups], processes, starter)


def slots_of(folder: Path, processes: int) -> Slots:
    """Return slots that let at most one process for each core compute at the same time.

    If there are at least as many cores as processes, return slots without a limit.
    """
    cores = available_cores()
    return Slots(str(folder / "slots"), cores) if processes > cores else Slots()
