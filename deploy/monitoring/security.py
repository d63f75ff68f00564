"""What was rejected and why, who is who, what expires."""

from __future__ import annotations

from typing import Any

from protofleet.deploy.monitoring.panels import dashboard, lines, number, table
from protofleet.deploy.monitoring.queries import DEVICE, FORGED

REFUTED_WILLS = 'protofleet_device_wills_total{outcome="refuted",device=~"$device"}'


def security() -> dict[str, Any]:
    about = "What was rejected and why, who is who, what expires, which alerts are raised."
    return dashboard(
        "protofleet-security",
        "protofleet: Security",
        about,
        [DEVICE],
        [
            number(
                "Forged or repeated",
                "none",
                (f'sum(increase(protofleet_rejected_total{{reason=~"{FORGED}"}}[1h]))', ""),
                warn=1,
                wide=6,
                about="messages that no honest party sends, in an hour",
            ),
            number(
                "Rejected",
                "none",
                ("sum by (job) (increase(protofleet_rejected_total[1h]))", "{{job}}"),
                wide=6,
                about="in an hour",
            ),
            number(
                "First certificate to end",
                "s",
                ("min(protofleet_certificate_expiry_timestamp_seconds) - time()", ""),
                warn=30 * 86_400,
                bad_below=True,
                wide=6,
            ),
            number("Coordinators", "none", ("count(protofleet_coordinator_epoch)", ""), warn=2, wide=6),
            lines(
                "Rejected",
                "none",
                ("sum by (job) (increase(protofleet_rejected_total[5m]))", "{{job}}"),
                stacked=True,
                about="in five minutes",
            ),
            table(
                "Rejected by reason",
                "none",
                "sum by (job, reason) (increase(protofleet_rejected_total[1h]))",
                wide=8,
                about="in an hour; docs/protocol.md, section 7, says what each means",
            ),
            lines(
                "Received messages by what became of them",
                "none",
                ("sum by (job, result) (increase(protofleet_messages_total[5m]))", "{{job}} {{result}}"),
                floor=0,
            ),
            lines(
                "Messages that have not come",
                "none",
                ('protofleet_device_messages_missing{device=~"$device"}', "{{device}}"),
                (
                    'sum(protofleet_device_coordinator_silent{device=~"$device"})',
                    "devices that hear nothing new",
                ),
                floor=0,
                about="said by a device and not come: lost, held back or on their way",
            ),
            lines(
                "Wills of devices that were there",
                "none",
                (f"sum by (device) (increase({REFUTED_WILLS}[1h]))", "{{device}}"),
                floor=0,
                about="in an hour: only a broker that works against us says them; it says them in the device's name",
            ),
            lines(
                "Coordinator started again",
                "none",
                ("changes(protofleet_coordinator_epoch[1h])", "{{instance}}"),
                floor=0,
                about="times in an hour: its epoch grows with every start",
            ),
            table(
                "Certificates end in",
                "s",
                'protofleet_certificate_expiry_timestamp_seconds{device=~"$device|"} - time()',
                wide=8,
            ),
            table(
                "Alerts that are raised",
                "none",
                'ALERTS{alertstate="firing"}',
                wide=8,
                about="Watchdog always is",
            ),
        ],
    )
