"""The series of a process and of its runs on one page. At a coordinator with a queue, a run's series name the run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Metric

from protofleet.coordinator.observe.series import over_series

KEPT_SECONDS: Final = 3600.0  # Seconds for which the series of a run are shown after its end.
RUN: Final = "run"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that is conducted no more, with its last values."""

    name: str
    families: tuple[Metric, ...]
    until: float  # Time at which the series are removed.
    failed: bool = False


class RunLabels(CollectorRegistry):
    """The registry of a page with the series of a process and of several runs.

    A run that has a name here has the label `run` in each of its series. The series of the last runs that have ended
    stay for an hour, at most `places` runs. The thread of the page reads the runs, so the tuples are never changed.
    """

    def __init__(
        self, process: CollectorRegistry, places: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._process, self._places, self._clock = process, places, clock
        self._open: tuple[tuple[str, CollectorRegistry], ...] = ()
        self._ended: tuple[EndedRun, ...] = ()

    def collect(self) -> Iterable[Metric]:
        whole: dict[str, Metric] = {}
        _add(whole, "", self._process.collect())
        now = self._clock()
        ended = [one for one in self._ended if now < one.until]
        for name, registry in self._open:
            _add(whole, name, _readable(registry))
        for one in ended:
            _add(whole, one.name, one.families)
        names = [(name, False) for name, _ in self._open] + [(one.name, one.failed) for one in ended]
        for name, failed in names:
            if name:
                over = over_series()
                over.add_metric([FAILED], float(failed))
                _add(whole, name, [over])
        return whole.values()

    def restricted_registry(self, names: Iterable[str]) -> CollectorRegistry:  # type: ignore[override]
        """Return a registry with the series of these names only, for a request with `name[]`."""
        found, wanted = CollectorRegistry(), set(names)
        for family in self.collect():
            family.samples = [sample for sample in family.samples if sample.name in wanted]
            if family.samples:
                found.register(_Fixed(family))
        return found

    @contextlib.contextmanager
    def showing(self, registry: CollectorRegistry, run: str = "") -> Iterator[None]:
        """Show the series of a run while the `with` lasts, and the last values of a run with a name for an hour."""
        self._ended = tuple(one for one in self._ended if one.name != run)
        self._open = (*self._open, (run, registry))
        try:
            yield
        finally:
            last = tuple(_readable(registry)) if run else ()
            self._open = tuple(one for one in self._open if one[1] is not registry)
            if run:
                self._keep(run, last)

    def fail(self, run: str) -> None:
        """Show that the coordinator cannot go on with a run. The run may be one that was never shown."""
        families = next((one.families for one in self._ended if one.name == run), ())
        self._keep(run, families, failed=True)

    def _keep(self, run: str, families: tuple[Metric, ...], failed: bool = False) -> None:
        now = self._clock()
        others = [one for one in self._ended if one.name != run and now < one.until]
        kept = [*others, EndedRun(run, families, now + KEPT_SECONDS, failed)]
        self._ended = tuple(kept[-self._places :])


class _Fixed:
    """A collector of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]


def _readable(registry: CollectorRegistry) -> list[Metric]:
    """Return the series of a run; none if the disk of the run cannot be read, because other runs go on."""
    try:
        return list(registry.collect())
    except OSError:
        return []


def _add(whole: dict[str, Metric], run: str, families: Iterable[Metric]) -> None:
    """Add series to the families of the page, with the label `run` if the run has a name."""
    label = {RUN: run} if run else {}
    for one in families:
        family = whole.setdefault(one.name, Metric(one.name, one.documentation, one.type))
        family.samples += [sample._replace(labels={**sample.labels, **label}) for sample in one.samples]
