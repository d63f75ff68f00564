"""Write docs/bounds.md from the bounds that the code enforces: python -m tools.pages.bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.deploy.fleet.settings import Fleet
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.overrides import Overrides
from protofleet.lab.local.experiment import Experiment
from protofleet.methods.contract.catalog import load, names
from protofleet.protocol.settings.bounds import Within

PAGE: Final = Path(__file__).parents[2] / "docs" / "bounds.md"
TABLES: Final[Mapping[str, type]] = {
    "An experiment": Experiment,
    "A coordinator": CoordinatorSettings,
    "A device": DeviceSettings,
    "A fleet": Fleet,
    "A tuning": Overrides,
}
INTRO: Final = """\
# Bounds of numbers

Every number of a settings file lies between these; what does not is one line that names the file, the key, the value
and the bounds, and exit code 2. What two settings must be to each other is said in [settings.md](settings.md).
`NAME` stands for a name of your own. The numbers of command lines are bounded in the same way.

`python -m tools.pages.bounds` writes this page from the code.
"""


def generate() -> str:
    parts = [INTRO, *(section(title, cls) for title, cls in TABLES.items())]
    return "".join([*parts, *(section(f"The method {name}", load(name).Hyper) for name in names())])


def section(title: str, cls: type) -> str:
    rows = "".join(f"| `{'.'.join(path)}` | {bound} |\n" for path, bound in numbers(cls))
    return f"\n## {title}\n\n| key | must be |\n|---|---|\n{rows}"


def numbers(cls: type, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Within]]:
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        yield from nested_bounds(hints[field.name], (*path, field.name))


def nested_bounds(hint: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Within]]:
    """Yield the bounds of a number, or of all numbers of a table.

    Numbers inside a list, under any name, or that may be left out are included.
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
