"""Define queries that several dashboards share: template variables and expressions."""

from __future__ import annotations

from typing import Final

from tools.monitoring.panels import variable

DEVICE: Final = variable("device", "Device", 'label_values(up{job="devices"}, device)')
DOMAIN: Final = variable("domain", "Domain", "label_values(protofleet_accuracy_ratio, domain)")
VIEW: Final = variable("view", "View", "label_values(protofleet_accuracy_ratio, view)")
ALL_DEVICES: Final = "all devices|other"  # rows of the bytes by device that belong to no single device
METHOD: Final = variable("method", "Method", "label_values(protofleet_round_bytes, method)")

ACCURACY: Final = 'protofleet_accuracy_ratio{split="test", domain=~"$domain", view=~"$view"}'
OURS: Final = "protofleet_rounds_bytes_total"
FEDAVG: Final = "protofleet_fedavg_bytes_total > 0"
# Reasons of rejections that no honest device or coordinator causes.
FORGED: Final = (
    "bad_signature|equivocation|stale_boot|unknown_sender|"
    "wrong_topic|wrong_recipient|wrong_federation|not_sealed"
)  # fmt: skip
OVER: Final = "15m"  # the time over which a recent mean is taken: several rounds of most runs


def recent_mean(histogram: str) -> str:
    """Return the query for the recent mean of a histogram, if there were recent observations.

    A mean since the start would hide changes.
    """
    return f"increase({histogram}_sum[{OVER}]) / (increase({histogram}_count[{OVER}]) > 0)"


COMMITTED: Final = "(protofleet_round_last_commit_timestamp_seconds > 0)"
