"""Write docs/bounds.md from the bounds that the code enforces: python -m tools.pages.bounds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from protofleet.cli.settings_tables import LOCAL, METHOD, SettingsTable, by_class, file_tables, heading
from protofleet.coordinator.config import CoordinatorSettings
from protofleet.deploy.fleet.settings import Fleet
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.overrides import Overrides
from protofleet.federation.remote.settings import OperatorSettings
from protofleet.lab.local.experiment import Experiment
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.parts.local import LocalHyper
from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.described import DescribedSetting, added_keys, keys
from protofleet.protocol.settings.sentences import summary

PAGE: Final = Path(__file__).parents[2] / "docs" / "bounds.md"
TABLES: Final[Mapping[str, type]] = {
    "An experiment": Experiment,
    "A coordinator": CoordinatorSettings,
    "A device": DeviceSettings,
    "A fleet": Fleet,
    "A tuning": Overrides,
    "An operator": OperatorSettings,
}
INTRO: Final = """\
# Bounds of numbers

[All settings](#all-settings) are listed at the end of this page.

This page lists the bounds of every number in a settings file. If a number is outside its bounds, the command
prints one line with the file, the key, the value and the bounds, and ends with exit code 2. Some settings also
depend on each other: see [settings.md](settings.md). `NAME` stands for a name that you choose. Options of commands
have bounds too.

`python -m tools.pages.bounds` writes this page from the code.
"""

ALL: Final = """
## All settings

This section lists all tables of the settings files with all their keys. `protofleet settings TABLE` prints one table.
"""


def generate() -> str:
    parts = [INTRO, *(section(title, cls) for title, cls in TABLES.items())]
    methods = (section(f"The method {name}", load(name).Hyper) for name in names())
    return "".join([*parts, *methods, ALL, *all_settings()])


def section(title: str, cls: type) -> str:
    rows = "".join(f"| `{'.'.join(path)}` | {bound} |\n" for path, bound in numbers(cls))
    return f"\n## {title}\n\n| key | must be |\n|---|---|\n{rows}"


def all_settings() -> Iterator[str]:
    """Yield a table of keys for each TOML table.

    The table of a method has the keys that not all methods have, and the common keys with a default of its own.
    """
    for cls, tables in by_class([*file_tables(), LOCAL]):
        yield described(tables, summary(cls), keys(cls))
    for name in names():
        if added := added_keys(hyper := load(name).Hyper, LocalHyper):
            trains = issubclass(hyper, LocalHyper)
            words = (
                "Further keys, and keys with another default:" if trains else "No device trains. All keys:"
            )
            yield described([SettingsTable(METHOD, (name,), hyper)], words, added)


def described(tables: list[SettingsTable], words: str, settings: list[DescribedSetting]) -> str:
    titles = re.sub(r"(\[[\w.]+\])", r"`\1`", heading(tables))
    rows = "".join(map(row, settings))
    return f"\n### {titles}\n\n{words}\n\n| key | type | must be | default | meaning |\n|---|---|---|---|---|\n{rows}"


def row(setting: DescribedSetting) -> str:
    default = setting.default_text if setting.default is None else f"`{setting.default_text}`"
    cells = f"`{setting.key}`", setting.type, setting.bounds, default, setting.sentence
    return f"| {' | '.join(cells)} |\n"


def numbers(cls: type, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Within]]:
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        yield from nested_bounds(hints[field.name], (*path, field.name))


def nested_bounds(hint: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Within]]:
    """Yield the bounds of a number, or of all numbers in a table.

    This includes numbers inside a list, optional numbers, and numbers in a table whose keys the user chooses.
    """
    if dataclasses.is_dataclass(hint):
        yield from numbers(hint, path)  # type: ignore[arg-type]
    elif get_origin(hint) is Annotated:
        yield from ((path, bound) for bound in hint.__metadata__ if isinstance(bound, Within))
    else:
        named = (*path, "NAME") if get_origin(hint) is dict else path
        for part in get_args(hint):
            yield from nested_bounds(part, named)


if __name__ == "__main__":
    PAGE.write_text(generate())
