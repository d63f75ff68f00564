"""Define the dashboard for rejected messages and their reasons, and for expiring certificates."""

from __future__ import annotations

from typing import Any

from tools.monitoring.panels import dashboard, stat, table, time_series
from tools.monitoring.queries import DEVICE, FORGED

REFUTED_WILLS = 'protofleet_device_wills_total{outcome="refuted",device=~"$device"}'


def security() -> dict[str, Any]:
    description = "What was rejected and why, what expires, which alerts fire."
    return dashboard(
        "protofleet-security",
        "protofleet: Security",
        description,
        [DEVICE],
        [
            stat(
                "Forged or replayed",
                "none",
                (f'sum(increase(protofleet_rejected_total{{reason=~"{FORGED}"}}[1h]))', ""),
                warn=1,
                width=6,
                description="messages that no honest device or coordinator sends, in an hour",
            ),
            stat(
                "Rejected",
                "none",
                ("sum by (job) (increase(protofleet_rejected_total[1h]))", "{{job}}"),
                width=6,
                description="in an hour",
            ),
            stat(
                "Time until a certificate expires",
                "s",
                ("min(protofleet_certificate_expiry_timestamp_seconds) - time()", "parties"),
                ("max(protofleet_broker_certificate_expiry_timestamp_seconds) - time()", "broker"),
                warn=30 * 86_400,
                bad_below=True,
                width=6,
            ),
            stat(
                "Coordinators",
                "none",
                (
                    "count by (federation) (group by (federation, instance) (protofleet_run_info))",
                    "{{federation}}",
                ),
                warn=2,
                width=6,
            ),
            time_series(
                "Rejected",
                "none",
                ("sum by (job) (increase(protofleet_rejected_total[5m]))", "{{job}}"),
                stacked=True,
                description="in five minutes",
            ),
            table(
                "Rejected by reason",
                "none",
                "sum by (job, reason) (increase(protofleet_rejected_total[1h]))",
                width=8,
                description="in an hour; docs/protocol.md, section 7, says what each means",
            ),
            time_series(
                "Received messages by result",
                "none",
                ("sum by (job, result) (increase(protofleet_messages_total[5m]))", "{{job}} {{result}}"),
                floor=0,
            ),
            time_series(
                "Missing messages",
                "none",
                ('max by (device) (protofleet_device_messages_missing{device=~"$device"})', "{{device}}"),
                (
                    'sum(protofleet_device_coordinator_silent{device=~"$device"})',
                    "devices that receive nothing new",
                ),
                floor=0,
                description="announced by a device and not received: lost, withheld or on their way",
            ),
            time_series(
                "Refuted wills",
                "none",
                (f"max by (device) (sum by (device, run) (increase({REFUTED_WILLS}[1h])))", "{{device}}"),
                floor=0,
                description="in an hour, of devices still connected; only a malicious broker publishes them",
            ),
            time_series(
                "Coordinator restarts",
                "none",
                ("changes(protofleet_coordinator_epoch[1h])", "{{instance}}"),
                floor=0,
                description="in an hour: its epoch grows with every start",
            ),
            table(
                "Certificates expire in",
                "s",
                'protofleet_certificate_expiry_timestamp_seconds{device=~"$device|"} - time()',
                width=8,
            ),
            table(
                "Firing alerts",
                "none",
                'ALERTS{alertstate="firing"}',
                width=8,
                description="Watchdog always fires",
            ),
        ],
    )
