"""Define where the devices of a run work: in processes of this machine, or in tasks on other nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeAlias

from protofleet.coordinator.round.policy import Policy
from protofleet.edge_client.trainer.slots import Slots
from protofleet.lab.local.experiment import Experiment
from protofleet.lab.local.processes import Processes
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.runtime.children import Starter

Groups: TypeAlias = Sequence[Sequence[str]]  # The names of the devices of each process.


class Placement(Protocol):
    """The device processes of a run."""

    def start(self) -> None:
        """Start all devices, or take over those that an earlier start has left."""

    def states(self) -> Sequence[str]:
        """Return the state of each process or task that has not ended."""
        ...

    def keep_running(self) -> None:
        """Start processes again that have ended although the run goes on."""

    def failed(self) -> Mapping[str, str]:
        """Return the reason for each failed device. Call this only while the run goes on."""
        ...

    def stop(self) -> None:
        """End all devices that still run."""


class Site(Protocol):
    """The machines on which the devices of a run work."""

    @property
    def host(self) -> str:
        """Return the name or address of this machine on which the broker listens, so that the devices reach it."""
        ...

    def groups(self, experiment: Experiment, folder: Path, on_gpu: bool) -> Groups:
        """Return the devices of each process, or raise SettingsError if this site cannot run the experiment."""
        ...

    def begun(self, folder: Path, groups: Groups) -> AbstractContextManager[Site]:
        """Submit the tasks, if this site has tasks, and yield the site of this run. Cancel them on an error."""
        ...

    def slots(self, folder: Path, groups: Groups) -> Slots:
        """Return the slots for the settings of the devices."""
        ...

    def policy(self, experiment: Experiment) -> Policy:
        """Return the policy of the coordinator. It may differ from the recorded policy in its patience."""
        ...

    def starter(
        self, starter: Starter, experiment: Experiment, groups: Groups
    ) -> AbstractContextManager[Starter]:
        """Yield the starter of device processes."""
        ...

    def placement(
        self,
        groups: Groups,
        processes: Processes,
        starter: Starter,
        broker: BrokerAddress,
        say: Callable[[str], None],
    ) -> Placement:
        """Return the devices, which are not started yet."""
        ...
