"""Read the results of a run from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from protofleet.lab.api.errors import public_errors
from protofleet.lab.api.model import Model, Which, load_model
from protofleet.lab.report.comparison import ComparedRun, read_comparable_run
from protofleet.protocol.link.meter import DOWN, UP, human_bytes


@dataclass(frozen=True)
class Bytes:
    """The bytes that were sent in a whole run."""

    up: int  # Bytes of arrays that devices sent to the coordinator.
    down: int  # Bytes of arrays that the coordinator sent to devices.
    wire: int  # All bytes on the network, in both directions.

    @property
    def tensors(self) -> int:
        """Return the bytes of arrays in both directions."""
        return self.up + self.down


@dataclass(frozen=True)
class Point:
    """The accuracy of a run after some rounds of training."""

    rounds: int
    bytes: int  # Bytes of arrays in both directions, from the start of the run to this round.
    accuracy: float  # Accuracy on test samples. All domains have the same weight in this mean.
    by_domain: Mapping[str, float]
    validation: float | None  # Mean accuracy on validation samples; None if no device has validation samples.
    devices: int = 0  # Number of devices that measured the accuracy.
    all_present: bool = (
        True  # True if all present devices had to measure; False if only a sampled cohort had to.
    )


class Result:
    """A finished run. `Result("runs/demo")` reads a run that finished earlier.

    Every accuracy belongs to the model that the method's paper reports: the global model or the devices' own
    models. `view` is the name of this choice.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        with public_errors():
            self._run: ComparedRun = read_comparable_run(self.folder)
        self.view: str = self._run.summary["reports"]

    def __repr__(self) -> str:
        return f"<{self.name}: {self._words}>"

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(self.name)}</b>: {escape(self._words)}<br><code>{escape(str(self.folder))}</code></p>"

    @property
    def _words(self) -> str:
        points = self.points
        reached = (
            f"accuracy {self.accuracy:.1%} after {points[-1].rounds} rounds" if points else "no accuracy"
        )
        return f"{self.method}, {reached}, tensors {human_bytes(self.bytes.tensors)}"

    @property
    def name(self) -> str:
        """Return the name of the run."""
        return str(self._run.summary["name"])

    @property
    def method(self) -> str:
        """Return the name of the method."""
        return str(self._run.summary["method"])

    @property
    def seed(self) -> int:
        """Return the seed of the run."""
        return int(self._run.summary["seed"])

    @property
    def summary(self) -> Mapping[str, Any]:
        """Return the contents of summary.json."""
        return self._run.summary

    @property
    def rounds(self) -> list[Mapping[str, Any]]:
        """Return the records of rounds.jsonl. The last record may be an evaluation without training."""
        return list(self._run.rounds)

    @cached_property
    def points(self) -> list[Point]:
        """Return the accuracy after each measured round, with the bytes sent until then, for a curve."""
        return [
            Point(
                point.rounds, point.bytes, point.accuracy["mean"],
                {name: value for name, value in point.accuracy.items() if name != "mean"},
                point.validation.get("mean"), point.devices, point.by_all,
            )
            for point in self._run.points(self.view)
        ]  # fmt: skip

    @property
    def accuracy(self) -> float:
        """Return the accuracy on test samples after the last round. All domains have the same weight in this mean.

        The accuracy is NaN if no device has measured it.
        """
        return self.points[-1].accuracy if self.points else float("nan")

    @property
    def by_domain(self) -> Mapping[str, float]:
        """Return the accuracy on test samples after the last round, by domain; empty if no device has measured it."""
        return self.points[-1].by_domain if self.points else {}

    @property
    def bytes(self) -> Bytes:
        """Return the bytes that were sent in the whole run."""
        run = self._run
        up, down = run.total_bytes("payload", UP), run.total_bytes("payload", DOWN)
        return Bytes(up, down, run.total_bytes("wire", UP, DOWN))

    def model(self, which: Which = "best", device: str | None = None) -> Model:
        """Load the learned model. If `device` is given, load that device's own model."""
        return load_model(self.folder, device, which)

    @property
    def report(self) -> Path:
        """Return the path of the report, which is a page for a browser."""
        return self.folder / "report.html"
