"""Find the settings in which the groups of a comparison differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from protofleet.lab.report.comparison import Group

UNSET: Final = "(not set)"  # The text for a setting that is not in the file or that the method does not have.
NOTE: Final = (
    "Settings that are not the same in all experiments. Seeds, names, ports and the machine do not count. Not set: "
    "its default, or no setting of that method."
)


@dataclass(frozen=True)
class SettingsDifference:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = NOTE


def settings_difference(groups: Sequence[Group]) -> SettingsDifference:
    """Return a table of the settings that differ, with a row for each setting and a column for each group."""
    settings = settings_of(groups)
    rows = [[key, *(shown(one.get(key, UNSET)) for one in settings)] for key in differing(settings)]
    return SettingsDifference(["setting", *(group.name for group in groups)], rows)


def settings_of(groups: Sequence[Group]) -> list[dict[str, Any]]:
    return [flat(json.loads(group.runs[0].settings)) for group in groups]


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = sorted({key for one in settings for key in one})
    return [key for key in keys if len({json.dumps(one.get(key), sort_keys=True) for one in settings}) > 1]


def flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Flatten nested tables to one table whose names have dots, such as `data.root`."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
