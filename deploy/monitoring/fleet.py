"""Which devices there are, how they are, and who keeps the others waiting."""

from __future__ import annotations

from typing import Any

from protofleet.deploy.monitoring.panels import bars, dashboard, lines, number, table
from protofleet.deploy.monitoring.queries import DEVICE


def fleet() -> dict[str, Any]:
    about = "Which devices there are, how they are, and who keeps the others waiting."
    chosen = '{device=~"$device"}'
    return dashboard(
        "protofleet-fleet",
        "protofleet: Fleet",
        about,
        [DEVICE],
        [
            number(
                "Devices that answer",
                "none",
                ('sum(up{job="devices"})', "up"),
                ('count(up{job="devices"})', "known"),
                wide=6,
            ),
            number(
                "With a session at the broker",
                "none",
                (f"sum(protofleet_device_connected{chosen})", ""),
                wide=6,
            ),
            number(
                "Answers that wait for a receipt",
                "none",
                (f"sum(protofleet_device_outbox_answers{chosen})", ""),
                wide=6,
            ),
            number(
                "Hottest",
                "celsius",
                (f"max(protofleet_device_temperature_celsius{chosen})", ""),
                warn=85,
                wide=6,
            ),
            lines(
                "Temperature",
                "celsius",
                (f"protofleet_device_temperature_celsius{chosen}", "{{device}} {{zone}}"),
            ),
            bars(
                "Stragglers: seconds an answer takes",
                "s",
                (f"sort_desc(protofleet:device_work_seconds:mean{chosen})", "{{device}}"),
                about="mean of the last 15 minutes",
            ),
            lines(
                "Last round worked in", "none", (f"protofleet_device_round{chosen}", "{{device}}"), floor=0
            ),
            lines(
                "Heard of last",
                "s",
                (f"time() - protofleet_device_last_seen_timestamp_seconds{chosen}", "{{device}}"),
                floor=0,
                about="seconds ago, by the coordinator",
            ),
            lines(
                "Memory left",
                "bytes",
                (f"protofleet_device_memory_available_bytes{chosen}", "{{device}}"),
                floor=0,
            ),
            lines("Disk left", "bytes", ("protofleet_disk_available_bytes", "{{job}} {{device}}"), floor=0),
            table("Versions", "none", "count by (version, role) (protofleet_build_info)"),
            table(
                "Who answers",
                "none",
                'up{job="devices"}',
                about="0: does not",
                hide=["job"],
                largest_first=False,
            ),
        ],
    )
