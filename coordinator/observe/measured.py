"""The metrics that the coordinator uses: their names belong to the run's method, and their values are finite.

All metrics of updates go through this module. A metric with an unknown name is ignored: a device of another version,
or a device that lies, may have sent it. The device is not excluded, and the metric gets no series. NaN is ignored
too, because it is not valid JSON and cannot be averaged. A device that sends NaN does not lie: its model has
diverged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

from protofleet.coordinator.devices.limits import HOTTEST, MAX_MEASURED
from protofleet.coordinator.observe.record import MEAN, ByView
from protofleet.coordinator.round.weights import capped
from protofleet.protocol.wire.name_list import first_names

MOST_NAMED: Final = 5  # Largest number of devices that one line names.
SAMPLES: Final = "samples.test"
# Kind of work of a device -> metric of its energy.
JOULES: Final = {"train": "joules.train", "send": "joules.send"}


def names_of(views: Iterable[str], own: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of the metrics of a run; `own` are the metrics that the run defines itself."""
    measures = [f"{what}.{split}" for what in ("accuracy", "loss", *own) for split in ("test", "validation")]
    return frozenset(
        {SAMPLES, HOTTEST, *JOULES.values()} | {f"{measure}.{view}" for measure in measures for view in views}
    )


def counted(metrics: Mapping[str, float], names: Set[str]) -> dict[str, float]:
    """Return the metrics that the run's method has and whose values are finite and not too large."""
    return {n: v for n, v in metrics.items() if n in names and math.isfinite(v) and abs(v) <= MAX_MEASURED}


def by_domain(
    measured: Mapping[str, Mapping[str, float]], held: Mapping[str, tuple[str, int]], name: str,
    weight_cap: float = 0.0,
) -> ByView:  # fmt: skip
    """Return the mean of a metric by view and domain.

    Each mean is taken over the devices of the domain, weighted by their numbers of examples. `held` holds the
    domain and the number of examples of each device.
    """
    weights = capped({device: max(1, held[device][1]) for device in measured}, weight_cap)
    sums: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for device, metrics in sorted(measured.items()):
        domain, weight = held[device][0], weights[device]
        for key, value in metrics.items():
            if key.startswith(f"{name}."):
                view = sums.setdefault(key.removeprefix(f"{name}."), {})
                view.setdefault(domain, []).append((value, weight))
    return {
        view: {d: sum(v * w for v, w in pairs) / sum(w for _, w in pairs) for d, pairs in domains.items()}
        for view, domains in sums.items()
    }


def lacking(measured: Mapping[str, Mapping[str, float]], name: str) -> list[str]:
    """Return the devices that measured an accuracy, but sent no finite value of this metric of the run."""

    def has(metrics: Mapping[str, float], what: str) -> bool:
        return any(key.startswith(f"{what}.test.") for key in metrics)

    return sorted(d for d, found in measured.items() if has(found, "accuracy") and not has(found, name))


def lacking_words(name: str, devices: Sequence[str], number: int) -> str:
    return (
        f"metric {name} is no finite number on {first_names(devices, MOST_NAMED)} in round {number}: it is "
        "left out of the means; "
        "`protofleet check FILE` tries it"
    )


def own_figures(found: Mapping[str, ByView]) -> dict[str, float]:
    """Return the means of the metrics that the run defines itself, as figures of a round.

    `found` maps the name of each metric to its means from `by_domain`. The names of the figures are, for
    example, `macro_f1.global.mnist` and `macro_f1.global.mean`.
    """
    figures: dict[str, float] = {}
    for name, views in found.items():
        for view, domains in views.items():
            figures |= {f"{name}.{view}.{domain}": value for domain, value in domains.items()}
            figures[f"{name}.{view}.{MEAN}"] = sum(domains.values()) / len(domains)
    return figures


def by_device(measured: Mapping[str, Mapping[str, float]], name: str) -> ByView:
    """Return the values of a metric by view and device."""
    found: ByView = {}
    for device, metrics in sorted(measured.items()):
        for key, value in metrics.items():
            if key.startswith(f"{name}."):
                found.setdefault(key.removeprefix(f"{name}."), {})[device] = value
    return found


def pooled(
    measured: Mapping[str, Mapping[str, float]], samples: Mapping[str, float], weight_cap: float = 0.0
) -> dict[str, float]:
    """Return the test accuracy by view, as the mean over devices, weighted by their test samples.

    The paper of FedSA reports this value.
    """
    weights = capped({device: samples.get(device, 0.0) for device in measured}, weight_cap)
    right: dict[str, float] = {}
    total: dict[str, float] = {}
    for view, values in by_device(measured, "accuracy.test").items():
        for device, value in values.items():
            if weight := weights[device]:
                right[view] = right.get(view, 0.0) + weight * value
                total[view] = total.get(view, 0.0) + weight
    return {view: right[view] / total[view] for view in right}
