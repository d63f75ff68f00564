"""Define the dashboard for all bytes, by method, kind and direction."""

from __future__ import annotations

from typing import Any

from tools.monitoring.panels import dashboard, stat, table, time_series
from tools.monitoring.queries import ALL_DEVICES, CHOSEN, DEVICE, FEDAVG, METHOD, OURS, RUN


def traffic() -> dict[str, Any]:
    description = "All bytes, by method, kind and direction, and what FedAvg would have cost."
    tensors = 'protofleet_run_bytes_total{run=~"$run", method=~"$method"}'
    uncoded = 'protofleet_uncoded_bytes_total{run=~"$run", method=~"$method"}'
    wire = 'protofleet_run_wire_bytes_total{run=~"$run", method=~"$method"}'
    crossing = 'protofleet_message_wire_bytes_total{job="coordinator", run=~"$run", method=~"$method"}'
    messages = 'protofleet_messages_total{job="coordinator", run=~"$run"}'
    theirs = 'protofleet_message_wire_bytes_total{job="devices", device=~"$device"}'
    divided = f'{{run=~"$run", device=~"$device|{ALL_DEVICES}", method=~"$method"}}'
    return dashboard(
        "protofleet-bytes",
        "protofleet: Bytes and methods",
        description,
        [RUN, METHOD, DEVICE],
        [
            stat(
                "Tensors so far",
                "bytes",
                (f"sum by (direction) ({tensors})", "{{direction}}"),
                width=6,
                description="of all rounds that have ended",
            ),
            stat(
                "On the wire so far",
                "bytes",
                (f"sum by (direction) ({wire})", "{{direction}}"),
                width=6,
                description="of all rounds that have ended",
            ),
            stat(
                "Saved against FedAvg",
                "percentunit",
                (f"1 - sum by (direction) ({OURS}) / sum by (direction) ({FEDAVG})", "{{direction}}"),
                warn=0,
                bad_below=True,
                width=6,
            ),
            stat(
                "Overhead on the wire over tensors",
                "percentunit",
                (f"sum({wire}) / sum({tensors}) - 1", ""),
                width=6,
                description="headers, signatures, tables, topics, retransmissions",
            ),
            time_series(
                "Tensor bytes of a round, by kind and direction",
                "bytes",
                (
                    'sum by (direction, kind) (protofleet_round_bytes{run=~"$run", method=~"$method"})',
                    "{{direction}} {{kind}}",
                ),
                stacked=True,
                width=12,
            ),
            time_series(
                "Tensor bytes of a round, by method",
                "bytes",
                (
                    'sum by (method, direction) (protofleet_round_bytes{run=~"$run", method=~"$method"})',
                    "{{method}} {{direction}}",
                ),
                (f"protofleet_round_fedavg_bytes{CHOSEN}", "{{run}} FedAvg {{direction}}"),
                width=12,
                floor=0,
            ),
            time_series(
                "All bytes of a round, by device, kind and direction",
                "bytes",
                (
                    f"sum by (device, direction, kind) (protofleet_round_device_wire_bytes{divided})",
                    "{{device}} {{direction}} {{kind}}",
                ),
                stacked=True,
                width=12,
                description="of the last round; `all devices`: messages that are published once for "
                "all asked devices, such as a broadcast",
            ),
            table(
                "All bytes of the run, by device, kind and direction",
                "bytes",
                f"sum by (device, direction, kind) (protofleet_run_device_wire_bytes_total{divided})",
                description="of all rounds that have ended",
            ),
            time_series(
                "On the wire",
                "Bps",
                (f"sum by (direction, kind) (rate({crossing}[$__rate_interval]))", "{{direction}} {{kind}}"),
                stacked=True,
            ),
            time_series(
                "By device",
                "Bps",
                (f"sum by (device) (rate({theirs}[$__rate_interval]))", "{{device}}"),
                floor=0,
            ),
            time_series(
                "Retransmitted",
                "percentunit",
                ("protofleet:repeated_bytes:ratio", "{{job}}"),
                floor=0,
                description="tensor bytes that were sent more than once, of all that were sent once",
            ),
            table(
                "Tensors so far, by method, kind and direction",
                "bytes",
                f"sum by (method, kind, direction) ({tensors})",
            ),
            time_series(
                "Bytes before and after the codec",
                "bytes",
                (f"sum by (direction) ({uncoded})", "{{direction}} before"),
                (f"sum by (direction) ({tensors})", "{{direction}} after"),
                floor=0,
                description="tensors of all rounds that have ended; a run without a codec has only `after`",
            ),
            time_series(
                "Messages",
                "none",
                (
                    f"sum by (direction, kind) (increase({messages}[5m]))",
                    "{{direction}} {{kind}}",
                ),
                width=12,
                floor=0,
                description="and blocks, in five minutes",
            ),
        ],
    )
