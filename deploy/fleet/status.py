"""Show the state of a host in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protofleet.deploy.fleet.device.facts import Facts, ServedVersion
from protofleet.deploy.fleet.device.roles import DEVICE
from protofleet.deploy.fleet.plan import Desired, has_ended, is_healthy, is_known_good, keeps_ending
from protofleet.protocol.security.records import day

ROW_FORMAT = "{:16} {:12} {:18} {:28} {:>5} {:>8} {:>7}  {:32}  {}"
# The values of the column "now"; docs/glossary.md explains them.
OVER, ANSWERS = "its run is over", "answers"
ENDS = "ends again and again"
CUT_OFF, UNHEARD = "not connected to the broker", "no coordinator has answered"
WORKING, UNCONFIRMED, IDLE = "working", "waits for a receipt", "waits for work"
NOW: Final = (OVER, ANSWERS, ENDS, CUT_OFF, UNHEARD, WORKING, UNCONFIRMED, IDLE, "revoked")

TITLES = ("host", "service", "release", "now", "round", "accepted", "hottest", "serves", "good since")


def status_title() -> str:
    return ROW_FORMAT.format(*TITLES)


def status_object(cells: tuple[str | int, ...]) -> dict[str, str | int | None]:
    """Return the cells of a host's line by their titles, for programs; an unknown value is None."""
    return {
        title.replace(" ", "_"): None if cell == "-" else cell
        for title, cell in zip(TITLES, cells, strict=True)
    }


def status_cells(
    name: str, facts: Facts, desired: Desired, revoked: str = ""
) -> tuple[tuple[str | int, ...], bool]:
    """Return the cells of a host's line, and whether the host is healthy and in its desired state."""
    here = facts.installed
    service, status = here.service, here.status
    alive = status if status is not None and status.pid == service.pid else None
    now = "-"
    if desired.role != DEVICE and service.active:
        now = OVER if has_ended(facts) else {"ok": ANSWERS}.get(here.answers, here.answers or "-")
    if alive is not None:
        now = CUT_OFF
        if alive.connected:
            doing = WORKING if alive.working else UNCONFIRMED if alive.waiting else IDLE
            now = doing if alive.heard else UNHEARD
    if keeps_ending(facts):
        now = f"{ENDS}{f': {status.over}' if status and status.over else ''}"
    if revoked:
        now = f"revoked {revoked}"
    wanted_here = here.release == desired.release and is_known_good(here.good, desired)
    heat = max((value for _, value in facts.temperatures), default=None)
    cells = (
        name, service.active or "not installed", (here.release or "-") + ("" if wanted_here else " *"), now,
        alive.round if alive else "-", alive.accepted if alive else "-", f"{heat:.0f} C" if heat is not None else "-",
        _served(here.models),
        day(here.good.at) if here.good else "never" + (" (* is not what the file says)" if not wanted_here else ""),
    )  # fmt: skip
    return cells, is_healthy(facts) and wanted_here and not revoked


def _served(models: Mapping[str, ServedVersion]) -> str:
    """Return the versions of the model that a device serves, such as `v000017 pinned, champion v000012`."""
    if (current := models.get("current")) is None:
        return "-"
    same = [link for link in ("champion", "pinned") if models.get(link) == current]
    champion = models.get("champion", current)
    other = "" if champion == current else f", champion {champion.version}"
    return " ".join([current.version, *same]) + other
