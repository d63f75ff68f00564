"""Implement `protofleet simulate --validate`: repeat a real run in virtual time, and compare the two."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from protofleet.lab.local.experiment import read_experiment
from protofleet.lab.report.comparison import write
from protofleet.lab.report.comparison_tables import Table
from protofleet.lab.report.energy_amounts import human_joules, joules_of
from protofleet.lab.report.finished_run import FinishedRun, read_run
from protofleet.lab.report.virtual_runs import is_virtual
from protofleet.lab.virtual.profiles import read_profiles
from protofleet.lab.virtual.simulate import named, simulate
from protofleet.lab.virtual.worked import seconds_of_run
from protofleet.protocol.link.meter import DOWN, UP, human_bytes
from protofleet.protocol.settings.reader import SettingsError

FILE: Final = "validation.json"


def seconds(value: float) -> str:
    return f"{value:.2f} s"


@dataclass(frozen=True)
class Compared:
    """One quantity of the real run and of the virtual run."""

    what: str
    real: float
    virtual: float

    @property
    def off(self) -> float:
        """Return the difference as a share of the real value."""
        return (self.virtual - self.real) / self.real


def validate(
    run: Path,
    profiles: Path,
    runs: Path,
    say: Callable[[str], None] = print,
    workers: int | None = None,
) -> str:
    """Run the settings of a finished run in virtual time, and return a table of the differences."""
    real = read_run(run)
    if is_virtual(real.summary):
        raise SettingsError(f"--validate {run}: this run is virtual; name a real run")
    if not (run / "experiment.toml").exists():
        raise SettingsError(
            f"--validate {run}: there is no experiment.toml in it, so its settings are not known"
        )
    experiment = named(read_experiment(run / "experiment.toml", []))
    read = read_profiles(profiles, seconds_of_run(run))
    report = simulate(experiment, runs, read, say, workers)
    virtual = read_run(report.parent)
    found = compared(real, virtual)
    table = {"run": real.summary["name"], "rows": [{**asdict(one), "off": one.off} for one in found]}
    write(report.parent / FILE, json.dumps(table, indent=1, allow_nan=False) + "\n")
    return "\n".join(["", table_of(found, run, same_accuracy(real, virtual)).text()])


def compared(real: FinishedRun, virtual: FinishedRun) -> list[Compared]:
    """Return the quantities that both runs have. A quantity that the real run has not measured is left out."""
    pairs: list[tuple[str, Callable[[FinishedRun], float]]] = [
        ("seconds of a round (median)", lambda run: median(training(run, "seconds") or [0.0])),
        ("seconds of the last evaluation", lambda run: run.rounds[-1]["seconds"]),
        ("seconds of the run", lambda run: sum(line["seconds"] for line in run.rounds)),
        ("wire bytes up", lambda run: wire(run, UP)),
        ("wire bytes down", lambda run: wire(run, DOWN)),
        ("joules", lambda run: sum(map(joules_of, run.rounds))),
    ]
    found = [Compared(what, of(real), of(virtual)) for what, of in pairs]
    return [one for one in found if one.real]


def training(run: FinishedRun, key: str) -> list[float]:
    return [line[key] for line in run.rounds if line["kind"] == "training"]


def wire(run: FinishedRun, way: str) -> float:
    return sum(sum(line["wire"].get(way, {}).values()) for line in run.rounds)


def same_accuracy(real: FinishedRun, virtual: FinishedRun) -> bool:
    def accuracy(run: FinishedRun) -> Sequence[Mapping[str, Any]]:
        return [line["accuracy"] for line in run.rounds]

    return accuracy(real) == accuracy(virtual)


def table_of(found: Sequence[Compared], run: Path, same: bool) -> Table:
    rows = [[one.what, shown(one, one.real), shown(one, one.virtual), f"{one.off:+.1%}"] for one in found]
    note = f"The accuracy of all rounds is {'the same' if same else 'NOT the same'} in both runs."
    return Table(f"Virtual time against {run}", note, ["quantity", "real", "virtual", "off by"], rows)


def shown(one: Compared, value: float) -> str:
    if one.what.startswith("seconds"):
        return seconds(value)
    return human_joules(value) if one.what == "joules" else human_bytes(value)
