"""Link a device to its coordinator for one more run, over the connection of the device's first link.

The two links share the connection, the keys, the sequence numbers, the counts of bytes and the store. Each link has
its own tasks, broadcasts and updates. Only the first link receives frames; it passes each message to the link of its
run.
"""

from __future__ import annotations

from typing import Any

from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.wire.arrays import ON_THE_WIRE


def _shared(name: str) -> Any:
    """Return a property that is always the attribute of the device's first link."""

    def get(link: RunLink) -> Any:
        return getattr(link.first, name)

    def put(link: RunLink, value: Any) -> None:
        setattr(link.first, name, value)

    return property(get, put)


class RunLink(DeviceLink):
    # These attributes change while the process runs. All other attributes are set once, or belong to one run.
    epoch = _shared("epoch")
    clock = _shared("clock")
    inline = _shared("inline")
    block = _shared("block")
    last_new_message_at = _shared("last_new_message_at")
    _capacity = _shared("_capacity")
    _last_capacity = _shared("_last_capacity")
    _best_capacity = _shared("_best_capacity")
    _sequence = _shared("_sequence")
    _early_block = _shared("_early_block")

    def __init__(self, first: DeviceLink, run: str) -> None:
        """Create the link of a run; the caller adds the link to `first.others`, if messages of the run may arrive."""
        self.first = first
        self.__dict__.update({key: value for key, value in vars(first).items() if key != "first"})
        self._begin_run()
        self.run, self.metric_names, self.kinds = run, (), ON_THE_WIRE

    @property
    def _links(self) -> list[DeviceLink]:
        return self.first._links
