"""Every byte, by method, kind and direction."""

from __future__ import annotations

from typing import Any

from protofleet.deploy.monitoring.panels import dashboard, lines, number, table
from protofleet.deploy.monitoring.queries import DEVICE, FEDAVG, METHOD, OURS


def traffic() -> dict[str, Any]:
    about = "Every byte, by method, kind and direction; beside what FedAvg would have cost."
    ours = 'job="coordinator", method=~"$method"'
    tensors = f"protofleet_message_bytes_total{{{ours}}}"
    theirs = 'protofleet_message_wire_bytes_total{job="devices", device=~"$device"}'
    wire = f"protofleet_message_wire_bytes_total{{{ours}}}"
    return dashboard(
        "protofleet-bytes",
        "protofleet: Bytes and methods",
        about,
        [METHOD, DEVICE],
        [
            number("Tensors so far", "bytes", (f"sum by (direction) ({tensors})", "{{direction}}"), wide=6),
            number("On the wire so far", "bytes", (f"sum by (direction) ({wire})", "{{direction}}"), wide=6),
            number(
                "Saved against FedAvg",
                "percentunit",
                (f"1 - sum by (direction) ({OURS}) / sum by (direction) ({FEDAVG})", "{{direction}}"),
                warn=0,
                bad_below=True,
                wide=6,
            ),
            number(
                "More on the wire than tensors",
                "percentunit",
                (f"sum({wire}) / sum({tensors}) - 1", ""),
                wide=6,
                about="headers, signatures, tables, topics, repeats",
            ),
            lines(
                "Tensor bytes of a round, by kind and direction",
                "bytes",
                (
                    'sum by (direction, kind) (protofleet_round_bytes{method=~"$method"})',
                    "{{direction}} {{kind}}",
                ),
                stacked=True,
                wide=12,
            ),
            lines(
                "Tensor bytes of a round, by method",
                "bytes",
                (
                    'sum by (method, direction) (protofleet_round_bytes{method=~"$method"})',
                    "{{method}} {{direction}}",
                ),
                ("protofleet_round_fedavg_bytes", "FedAvg {{direction}}"),
                wide=12,
                floor=0,
            ),
            lines(
                "On the wire",
                "Bps",
                (f"sum by (direction, kind) (rate({wire}[1m]))", "{{direction}} {{kind}}"),
                stacked=True,
            ),
            lines(
                "By device",
                "Bps",
                (f"sum by (device) (rate({theirs}[1m]))", "{{device}}"),
                floor=0,
            ),
            lines(
                "Sent again",
                "percentunit",
                ("protofleet:repeated_bytes:ratio", "{{job}}"),
                floor=0,
                about="tensor bytes that crossed more than once, of all that crossed once",
            ),
            table(
                "Tensors so far, by method, kind and direction",
                "bytes",
                f"sum by (method, kind, direction) ({tensors})",
            ),
            lines(
                "Messages",
                "none",
                (
                    'sum by (direction, kind) (increase(protofleet_messages_total{job="coordinator"}[5m]))',
                    "{{direction}} {{kind}}",
                ),
                wide=12,
                floor=0,
                about="and blocks, in five minutes",
            ),
        ],
    )
