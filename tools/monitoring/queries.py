"""Define the queries that several dashboards use: template variables and expressions."""

from __future__ import annotations

from typing import Final

from tools.monitoring.panels import variable

DEVICE: Final = variable("device", "Device", 'label_values(up{job="devices"}, device)')
DOMAIN: Final = variable("domain", "Domain", "label_values(protofleet_accuracy_ratio, domain)")
VIEW: Final = variable("view", "View", "label_values(protofleet_accuracy_ratio, view)")
ALL_DEVICES: Final = "all devices|other"  # Two values of the label `device` that stand for several devices.
METHOD: Final = variable("method", "Method", "label_values(protofleet_round_bytes, method)")

# The runs of a coordinator with a queue. The series of a coordinator of one run have no label `run`. A query for any
# value, ".*", finds them too.
RUN: Final = variable("run", "Run", "label_values(protofleet_round, run)")
CHOSEN: Final = '{run=~"$run"}'

ACCURACY: Final = 'protofleet_accuracy_ratio{split="test", run=~"$run", domain=~"$domain", view=~"$view"}'
OURS: Final = f"protofleet_rounds_bytes_total{CHOSEN}"
FEDAVG: Final = f"protofleet_fedavg_bytes_total{CHOSEN} > 0"
# Reasons for rejected messages that honest devices and coordinators never cause.
FORGED: Final = (
    "bad_signature|equivocation|stale_boot|unknown_sender|"
    "wrong_topic|wrong_recipient|wrong_federation|not_sealed"
)  # fmt: skip
OVER: Final = "15m"  # The time span of a recent mean. In most runs, it contains several rounds.


def recent_mean(histogram: str) -> str:
    """Return the query for the mean of a histogram's recent observations.

    If there are no such observations, the query has no value. A mean since the start of the process would
    hide changes.
    """
    return f"increase({histogram}_sum{CHOSEN}[{OVER}]) / (increase({histogram}_count{CHOSEN}[{OVER}]) > 0)"


COMMITTED: Final = f"(protofleet_round_last_commit_timestamp_seconds{CHOSEN} > 0)"
