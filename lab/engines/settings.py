"""Define the table [engine] of a file: the engine that runs the trials, and what it is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.suggest import there_are

KEYS: Final = (
    "partition", "account", "qos", "time", "mem", "cpus-per-task", "gres", "constraint", "exclude", "reservation",
)  # fmt: skip
# Options that the script of a job sets itself.
OURS: Final = (
    "array",
    "requeue",
    "no-requeue",
    "output",
    "error",
    "open-mode",
    "signal",
    "comment",
    "job-name",
)
VALUE: Final = re.compile(r"[^\x00-\x1f\x7f\"'\\]{1,200}")  # A line break would begin another option.
MAX_TASKS: Final = 100_000

EngineName = Literal["here", "slurm"]
Pack = Annotated[int, Within(1, 10_000)]
AtOnce = Annotated[int, Within(0, MAX_TASKS)]


@dataclass(frozen=True)
class EngineSettings:
    """The engine that runs the trials of a sweep, or several runs. It changes no result and no name of a run."""

    on: EngineName = "here"
    """Engine that runs the trials, `here` (this machine, one after another) or `slurm`."""
    pack: Pack = 1
    """Number of trials that a task of the engine runs one after another."""
    at_once: AtOnce = 0
    """Largest number of tasks that run at the same time; 0 means that the engine decides."""
    setup: tuple[str, ...] = ()
    """Lines of shell that each task runs before protofleet, such as `module load python`."""
    slurm: dict[str, Any] = field(default_factory=dict)
    """Options of `sbatch`, such as `partition` and `time`; docs/clusters.md lists those that are accepted."""

    def __post_init__(self) -> None:
        for key, value in self.slurm.items():
            if key in OURS:
                raise ValueError(f"slurm has {key}, which protofleet sets itself; leave it out")
            if key not in KEYS:
                raise ValueError(f"slurm has {key[:99]!r}; {there_are(key, KEYS)}")
            if isinstance(value, bool) or not isinstance(value, str | int) or not VALUE.fullmatch(str(value)):
                raise ValueError(
                    f"slurm.{key} is {str(value)[:99]!r}, it must be a number or a text of at most 200 letters "
                    "without quotes and line breaks"
                )
        if any("\n" in line for line in self.setup):
            raise ValueError("setup has a line break inside a line; write each line as a text of its own")

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the engine as texts."""
        return {key: str(value) for key, value in self.slurm.items()}

    def with_options(self, assignments: Sequence[str]) -> EngineSettings:
        """Return these settings with the values of `--slurm KEY=VALUE`."""
        found = dict(self.slurm)
        for text in assignments:
            key, equals, value = text.partition("=")
            if not equals or not key.strip() or not value.strip():
                raise SettingsError(
                    f"--slurm {text[:99]!r} is not of the form KEY=VALUE, for example --slurm partition=gpu"
                )
            found[key.strip()] = value.strip()
        try:
            return replace(self, slurm=found)
        except ValueError as error:
            raise SettingsError(f"--slurm: {error}") from None
