"""The devices that a run takes: all enrolled devices, or those that its settings select."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from protofleet.protocol.wire.messages import Hello
from protofleet.protocol.wire.reasons import Problem, Reason


@dataclass(frozen=True)
class DeviceSelection:
    """The devices that may take part in a run. Without any setting, all enrolled devices may."""

    names: tuple[str, ...] = ()
    """Names of the only devices that take part; empty means all devices."""
    without: tuple[str, ...] = ()
    """Names of devices that do not take part."""
    domains: tuple[str, ...] = ()
    """Domains of the only devices that take part, as the devices state them; empty means all domains."""

    def selects(self, device: str) -> bool:
        """Return whether a device of this name may take part. Its domain is known only from its hello."""
        return (not self.names or device in self.names) and device not in self.without

    def of(self, enrolled: Collection[str]) -> frozenset[str]:
        return frozenset(device for device in enrolled if self.selects(device))

    def takes(self, hello: Hello) -> bool:
        """Return whether the device of this hello takes part. A device without a domain is its own domain."""
        domain = hello.domain or hello.device
        return self.selects(hello.device) and (not self.domains or domain in self.domains)

    def problem_with(self, hello: Hello) -> Problem | None:
        if self.takes(hello):
            return None
        if self.selects(hello.device):
            said = hello.domain or hello.device
            words = f"the domain {said!r} is not selected; the run takes {', '.join(self.domains)} (devices.domains)"
            return Problem(Reason.UNFIT, words)
        return Problem(
            Reason.UNFIT, f"the run does not select {hello.device} (devices.names, devices.without)"
        )
