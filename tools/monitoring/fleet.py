"""Define the dashboard for the devices: their states, and which of them are slow."""

from __future__ import annotations

from typing import Any

from tools.monitoring.panels import bar_gauge, dashboard, stat, table, time_series
from tools.monitoring.queries import DEVICE


def fleet() -> dict[str, Any]:
    description = "All devices, their state, and the stragglers among them."
    chosen = '{device=~"$device"}'
    return dashboard(
        "protofleet-fleet",
        "protofleet: Fleet",
        description,
        [DEVICE],
        [
            stat(
                "Devices that answer Prometheus",
                "none",
                ('sum(up{job="devices"})', "up"),
                ('count(up{job="devices"})', "known"),
                width=6,
            ),
            stat(
                "Connected to the broker",
                "none",
                (f"sum(protofleet_device_connected{chosen})", "devices"),
                ("sum(protofleet_coordinator_connected)", "coordinator"),
                width=6,
            ),
            stat(
                "Answers without a receipt yet",
                "none",
                (f"sum(protofleet_device_outbox_answers{chosen})", ""),
                width=6,
            ),
            stat(
                "Highest temperature",
                "celsius",
                (f"max(protofleet_device_temperature_celsius{chosen})", ""),
                warn=85,
                width=6,
            ),
            time_series(
                "Temperature",
                "celsius",
                (f"protofleet_device_temperature_celsius{chosen}", "{{device}} {{zone}}"),
            ),
            bar_gauge(
                "Stragglers: seconds an answer takes",
                "s",
                (f"sort_desc(protofleet:device_work_seconds:mean{chosen})", "{{device}}"),
                description="mean of the last 15 minutes",
            ),
            time_series(
                "Last round worked in", "none", (f"protofleet_device_round{chosen}", "{{device}}"), floor=0
            ),
            time_series(
                "Last message received",
                "s",
                (
                    f"time() - max by (device) (protofleet_device_last_seen_timestamp_seconds{chosen})",
                    "{{device}}",
                ),
                floor=0,
                description="seconds ago, as the coordinator counts",
            ),
            time_series(
                "Available memory",
                "bytes",
                (f"protofleet_device_memory_available_bytes{chosen}", "{{device}}"),
                floor=0,
            ),
            time_series(
                "Available disk",
                "bytes",
                ("protofleet_disk_available_bytes", "{{job}} {{device}}"),
                floor=0,
            ),
            table("Versions", "none", "count by (version, role) (protofleet_build_info)"),
            table(
                "Whether each device answers Prometheus",
                "none",
                'up{job="devices"}',
                description="1: yes, 0: no",
                hide=["job"],
                largest_first=False,
            ),
        ],
    )
