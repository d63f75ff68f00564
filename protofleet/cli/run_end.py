"""Read from the folder of a run how the run has ended."""

from __future__ import annotations

from pathlib import Path


def end_of_run(run: Path) -> tuple[str, str] | None:
    """Return the final state of a run and its reason; None if the run is not over or its summary is damaged."""
    from protofleet.coordinator.observe.summary_file import read_summary
    from protofleet.coordinator.queue.states import FAILED, FINISHED, STOPPED
    from protofleet.coordinator.round.events import OPERATOR
    from protofleet.protocol.storage.store import DamagedError

    try:
        summary = read_summary(run / "summary.json")
    except DamagedError:  # A missing file, too.
        return None
    ended, stopped = str(summary.get("ended", FINISHED)), str(summary.get("stopped", ""))
    if ended != FINISHED:
        return FAILED, ended
    return STOPPED if summary.get("stopped_by") == OPERATOR else FINISHED, stopped
