"""Define the table [engine] of a file: the engine that runs the trials, and what it is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.reader import SettingsError, decode, encode, override
from protofleet.protocol.settings.size import PositiveSize
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
# Forms of a time limit that sbatch accepts: minutes, hours:minutes:seconds, days-hours and so on.
TIME: Final = re.compile(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}|infinite|unlimited", re.IGNORECASE)
MAX_TASKS: Final = 100_000

RAY_ADDRESS: Final = re.compile(r"auto|\[?[A-Za-z0-9_.:-]+\]?:[0-9]{1,5}")

EngineName = Literal["here", "slurm", "ray"]
Pack = Annotated[int, Within(1, 10_000)]
AtOnce = Annotated[int, Within(0, MAX_TASKS)]


@dataclass(frozen=True)
class RaySettings:
    """The Ray cluster of the tasks, and the part of a node that each task claims."""

    address: str = ""
    """Address and port of the cluster's head; empty means RAY_ADDRESS, or else the cluster of this machine."""
    num_cpus: Annotated[float, Within(0, 10_000, above=True)] = 1.0
    """Number of CPUs that a task claims."""
    num_gpus: Annotated[float, Within(0, 1_000)] = 0.0
    """Number of GPUs that a task claims; a part such as 0.5 shares a GPU."""
    memory: PositiveSize | None = None
    """Memory that a task claims, such as 4GB; without it, a task claims none."""

    def __post_init__(self) -> None:
        if self.address and not RAY_ADDRESS.fullmatch(self.address):
            raise ValueError(
                f"address is {self.address[:99]!r}, it must be HOST:PORT of the cluster's head, or auto; the command "
                "must run on a node of the cluster"
            )
        for key, value in {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}.items():
            if value > 1 and value != int(value):
                raise ValueError(f"{key} is {value}, and above 1 it must be a whole number")


@dataclass(frozen=True)
class EngineSettings:
    """The engine that runs the trials of a sweep, or several runs. It changes no result and no name of a run."""

    on: EngineName = "here"
    """Engine that runs the trials, `here` (this machine, one after another), `slurm` or `ray`."""
    pack: Pack = 1
    """Number of trials that a task of the engine runs one after another."""
    at_once: AtOnce = 0
    """Largest number of tasks that run at the same time; 0 means that the engine decides."""
    setup: tuple[str, ...] = ()
    """Lines of shell that each task runs before protofleet, such as `module load python`."""
    slurm: dict[str, Any] = field(default_factory=dict)
    """Options of `sbatch`, such as `partition` and `time`; docs/clusters.md lists those that are accepted."""
    ray: RaySettings = field(default_factory=RaySettings)
    """Address of a Ray cluster, and what each task claims there."""

    def __post_init__(self) -> None:
        for key, value in self.slurm.items():
            if key in OURS:
                raise ValueError(f"slurm has {key}, which protofleet sets itself; leave it out")
            if key not in KEYS:
                raise ValueError(f"slurm has {key[:99]!r}, which is not accepted; {there_are(key, KEYS)}")
            if isinstance(value, bool) or not isinstance(value, str | int) or not VALUE.fullmatch(str(value)):
                raise ValueError(
                    f"slurm.{key} is {str(value)[:99]!r}, it must be a number or a text of at most 200 letters "
                    "without quotes and line breaks"
                )
        if "time" in self.slurm and not TIME.fullmatch(str(self.slurm["time"])):
            raise ValueError(
                f"slurm.time is {str(self.slurm['time'])[:99]!r}, it must be minutes, or a time such as 2:00:00 "
                "or 1-12"
            )
        if any("\n" in line for line in self.setup):
            raise ValueError("setup has a line break inside a line; write each line as a text of its own")

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the engine as texts."""
        tables: dict[str, dict[str, Any]] = {"slurm": self.slurm, "ray": encode(self.ray)}
        return {key: str(value) for key, value in tables.get(self.on, {}).items()}

    def with_options(self, slurm: Sequence[str], ray: Sequence[str] = ()) -> EngineSettings:
        """Return these settings with the values of `--slurm KEY=VALUE` and `--ray KEY=VALUE`."""
        found = self.slurm | dict(pair("--slurm", text, "partition=gpu") for text in slurm)
        claimed = ["=".join(pair("--ray", text, "num_gpus=1")) for text in ray]
        try:
            on_ray = decode(RaySettings, override(encode(self.ray), claimed), "ray") if claimed else self.ray
        except SettingsError as error:
            raise SettingsError(f"--ray: {error}") from None
        try:
            return replace(self, slurm=found, ray=on_ray)
        except ValueError as error:
            raise SettingsError(f"--slurm: {error}") from None


def pair(option: str, text: str, example: str) -> tuple[str, str]:
    """Return the key and the value of KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise SettingsError(
            f"{option} {text[:99]!r} is not of the form KEY=VALUE, for example {option} {example}"
        )
    return key.strip(), value.strip()
