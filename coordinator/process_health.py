"""The health checks of a coordinator process."""

from __future__ import annotations

from pathlib import Path

from protofleet.coordinator.context import ProcessContext
from protofleet.methods.contract.liveness import tensors_work
from protofleet.runtime.health import Check, Heartbeats, disk_is_writable, loop_is_running


def health_of(context: ProcessContext, heartbeats: Heartbeats, folder: Path) -> dict[str, Check]:
    """Return the health checks of the coordinator by name. The coordinator is healthy if all of them pass."""
    return {
        "loop": loop_is_running(heartbeats),
        "broker": lambda: "" if context.connected else "there is no session with the broker; see the log",
        "torch": tensors_work,
        "disk": disk_is_writable(folder),
    }
