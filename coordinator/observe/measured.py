"""What counts of the metrics of an answer: names that the run's method has, and finite numbers. All go through here.

A name of another version, or a liar's, is passed over: it must neither end an honest device nor make a series. A
device whose model has diverged says NaN, which is no lie, no JSON and in no mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

from protofleet.coordinator.devices.limits import MAX_MEASURED
from protofleet.coordinator.observe.record import MEAN, ByView

MOST_NAMED: Final = 5  # devices in a line
SAMPLES: Final = "samples.test"
JOULES: Final = {"train": "joules.train", "send": "joules.send"}  # phase of a device's work -> metric


def names_of(views: Iterable[str], own: Iterable[str] = ()) -> frozenset[str]:
    """`own` are the run's own metrics."""
    measures = [f"{what}.{split}" for what in ("accuracy", "loss", *own) for split in ("test", "validation")]
    return frozenset(
        {SAMPLES, *JOULES.values()} | {f"{measure}.{view}" for measure in measures for view in views}
    )


def counted(metrics: Mapping[str, float], names: Set[str]) -> dict[str, float]:
    """Those that the run's method has and that say something: a model that has diverged has no loss."""
    return {n: v for n, v in metrics.items() if n in names and math.isfinite(v) and abs(v) <= MAX_MEASURED}


def by_domain(
    measured: Mapping[str, Mapping[str, float]], held: Mapping[str, tuple[str, int]], name: str
) -> ByView:
    """View -> domain -> mean over the devices that share it, by their examples. `held`: domain and examples."""
    sums: dict[str, dict[str, list[tuple[float, int]]]] = {}
    for device, metrics in sorted(measured.items()):
        domain, examples = held[device]
        for key, value in metrics.items():
            if key.startswith(f"{name}."):
                view = sums.setdefault(key.removeprefix(f"{name}."), {})
                view.setdefault(domain, []).append((value, max(1, examples)))
    return {
        view: {d: sum(v * w for v, w in pairs) / sum(w for _, w in pairs) for d, pairs in domains.items()}
        for view, domains in sums.items()
    }


def lacking(measured: Mapping[str, Mapping[str, float]], name: str) -> list[str]:
    """Devices that have measured accuracy and not that metric of one's own: it was no finite number."""

    def has(metrics: Mapping[str, float], what: str) -> bool:
        return any(key.startswith(f"{what}.test.") for key in metrics)

    return sorted(d for d, found in measured.items() if has(found, "accuracy") and not has(found, name))


def lacking_words(name: str, devices: Sequence[str], number: int) -> str:
    more = f" and {len(devices) - MOST_NAMED} more" if len(devices) > MOST_NAMED else ""
    named = ", ".join(devices[:MOST_NAMED]) + more
    return (
        f"metric {name} is no finite number on {named} in round {number}: it is left out of the means; "
        "`protofleet check FILE` tries it"
    )


def own_figures(found: Mapping[str, ByView]) -> dict[str, float]:
    """Metric -> what `by_domain` says, as figures of a round: `macro_f1.global.mnist`, `macro_f1.global.mean`."""
    figures: dict[str, float] = {}
    for name, views in found.items():
        for view, domains in views.items():
            figures |= {f"{name}.{view}.{domain}": value for domain, value in domains.items()}
            figures[f"{name}.{view}.{MEAN}"] = sum(domains.values()) / len(domains)
    return figures


def pooled(measured: Iterable[Mapping[str, float]], most: int) -> dict[str, float]:
    """Test accuracy by view with every device weighted by its test samples, as FedSA reports it."""
    right: dict[str, float] = {}
    samples: dict[str, float] = {}
    for metrics in measured:
        weight = min(metrics.get(SAMPLES, 0.0), most)  # as nobody can check that either
        for key, value in metrics.items():
            if weight and key.startswith("accuracy.test."):
                view = key.removeprefix("accuracy.test.")
                right[view] = right.get(view, 0.0) + weight * value
                samples[view] = samples.get(view, 0.0) + weight
    return {view: right[view] / samples[view] for view in right}
