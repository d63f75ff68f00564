"""Small repeated experiments on the bundled digits, and devices that the attacks of a test can observe."""

from pathlib import Path

from protofleet.lab.api.experiments import experiment_from
from protofleet.lab.leakage.measure import LeakageQuery, measured
from protofleet.lab.leakage.repeated import repeated

ROOT = Path(__file__).parent.parent.parent.parent


def small(
    method,
    rounds=1,
    devices=("optdigits", "mfeat"),
    samples=120,
    width=64,
    network="cnn_bn",
    validation=0.0,
    **hyper,
):
    """Return a small experiment of a method, with one device for each of these domains."""
    return experiment_from(
        {
            "name": "small", "rounds": rounds, "seed": 1,
            "method": {"name": method, **hyper},
            "network": {"name": network, "feature_size": width},
            "data": {"source": "digits", "samples": samples, "test_samples": 20, "validation": 0.0, "size": 16},
            "devices": {"clients": dict.fromkeys(devices, 1)},
        },
        None,
    )  # fmt: skip


TRAINED = {"epochs": 1, "batch": 32, "lr": 0.05}


def figures(method, rounds=1, attacker="A3", **small_settings):
    """Return the findings of all devices after a repeated experiment, by attack and device."""
    observed = repeated(small(method, rounds, **small_settings)).observed
    found = measured(observed, LeakageQuery(observed.devices, attacker))
    return observed, found, {(one.attack, one.device): one for one in [*found.findings, *found.pooled]}
