"""How a device does, in one line."""

from __future__ import annotations

from protofleet.deploy.fleet.device.facts import Facts
from protofleet.deploy.fleet.plan import Desired, is_good, is_well
from protofleet.protocol.security.records import day

FORM = "{:16} {:12} {:18} {:28} {:>5} {:>8} {:>7}  {}"


def status_title() -> str:
    return FORM.format("device", "service", "release", "now", "round", "accepted", "hottest", "good since")


def status_line(name: str, facts: Facts, desired: Desired) -> tuple[str, bool]:
    """The line, and whether all is as it shall be."""
    here = facts.installed
    service, status = here.service, here.status
    alive = status if status is not None and status.pid == service.pid else None
    now = "-"
    if alive is not None:
        now = "not connected to the broker"
        if alive.connected:
            doing = (
                "working" if alive.working else "waits for a receipt" if alive.waiting else "waits for work"
            )
            now = doing if alive.heard else "no coordinator has answered"
    wanted_here = here.release == desired.release and is_good(here.good, desired)
    heat = max((value for _, value in facts.temperatures), default=None)
    line = FORM.format(
        name, service.active or "not installed", (here.release or "-") + ("" if wanted_here else " *"), now,
        alive.round if alive else "-", alive.accepted if alive else "-", f"{heat:.0f} C" if heat is not None else "-",
        day(here.good.at) if here.good else "never" + (" (* is not what the file says)" if not wanted_here else ""),
    )  # fmt: skip
    return line, is_well(facts) and wanted_here
