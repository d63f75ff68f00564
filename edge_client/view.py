"""What an agent shows to whoever watches it: nothing of it can be changed by that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.disk_space import DiskSpaceCheck
from protofleet.protocol.link.device import DeviceLink


class Observer(Protocol):
    def happened(self, what: str, **figures: float) -> None: ...


class AgentView(Protocol):
    @property
    def link(self) -> DeviceLink: ...
    @property
    def state(self) -> DeviceState: ...
    @property
    def disk_space(self) -> DiskSpaceCheck: ...
    @property
    def receipts(self) -> Mapping[str, int]:
        """Of this process, by verdict."""
        ...

    @property
    def connected(self) -> bool: ...
    @property
    def heard(self) -> bool:
        """A coordinator has answered this process."""
        ...

    @property
    def silent(self) -> bool:
        """Connected, and the coordinator has said nothing new for long."""
        ...

    @property
    def working(self) -> bool: ...
    @property
    def waiting(self) -> bool:
        """An answer waits for its receipt."""
        ...

    @property
    def idle(self) -> bool:
        """The run is over, and there has been no other yet."""
        ...

    @property
    def draining(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def problem(self) -> str:
        """Why it ended before the run did."""
        ...
