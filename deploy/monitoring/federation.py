"""How far the run is, how well it learns, what a round costs."""

from __future__ import annotations

from typing import Any

from protofleet.deploy.monitoring.panels import dashboard, lines, number
from protofleet.deploy.monitoring.queries import ACCURACY, COMMITTED, DOMAIN, FEDAVG, OURS, VIEW


def federation() -> dict[str, Any]:
    about = "How far the run is, how well it learns, what a round costs."
    return dashboard(
        "protofleet-federation",
        "protofleet: Federation",
        about,
        [DOMAIN, VIEW],
        [
            number(
                "Round",
                "none",
                ("protofleet_round", "in hand"),
                ("protofleet_rounds_planned", "planned"),
                wide=5,
            ),
            number(
                "Devices",
                "none",
                ("protofleet_devices_present", "present"),
                ("protofleet_quorum", "quorum"),
                wide=5,
            ),
            number(
                "Mean accuracy",
                "percentunit",
                (f"avg({ACCURACY})", "test"),
                about="over domains and views that are chosen",
            ),
            number(
                "Since the last round",
                "s",
                (f"time() - {COMMITTED}", ""),
                warn=600,
                wide=5,
                about="RoundStalled is raised at twice what most rounds take",
            ),
            number(
                "Saved against FedAvg",
                "percentunit",
                (f"1 - sum({OURS}) / sum({FEDAVG})", ""),
                warn=0,
                bad_below=True,
                wide=5,
                about="of the bytes of the same network's weights, both ways, since the coordinator's last start",
            ),
            lines(
                "Accuracy by domain",
                "percentunit",
                (ACCURACY, "{{domain}} ({{view}})"),
                wide=12,
                about="on each domain's own test images",
            ),
            lines(
                "Loss by domain",
                "none",
                ('protofleet_loss{domain=~"$domain", view=~"$view"}', "{{domain}} ({{view}})"),
                wide=12,
            ),
            lines(
                "Who took part",
                "none",
                ("protofleet_round_invited", "invited"),
                ("protofleet_round_accepted", "accepted"),
                ("protofleet_round_late", "late"),
                ("protofleet_round_failed", "refused"),
                floor=0,
                about="in the last round; late ones are the stragglers",
            ),
            lines(
                "Seconds a round",
                "s",
                ("protofleet_round_duration_seconds_sum / protofleet_round_duration_seconds_count", "mean"),
                ("max(protofleet:round_seconds:p95)", "95 % took no longer"),
                floor=0,
            ),
            lines(
                "Seconds by phase",
                "s",
                ("protofleet_round_phase_seconds_sum / protofleet_round_phase_seconds_count", "{{phase}}"),
                floor=0,
                about="mean, from the ask to the close",
            ),
            lines(
                "Tensor bytes a round, beside FedAvg's",
                "bytes",
                ("sum by (direction) (protofleet_round_bytes)", "{{direction}}"),
                ("protofleet_round_fedavg_bytes", "{{direction}}, FedAvg"),
                floor=0,
            ),
            lines(
                "Answers",
                "none",
                ("increase(protofleet_updates_total[5m])", "{{verdict}}"),
                floor=0,
                about="in five minutes",
            ),
            lines(
                "Rounds behind",
                "none",
                (
                    "protofleet_update_staleness_rounds_sum / protofleet_update_staleness_rounds_count",
                    "mean",
                ),
                floor=0,
                about="of all answers when they came: 0 where none was late",
            ),
            lines(
                "Rounds begun again",
                "none",
                ("protofleet_rounds_repeated_total", "for want of a quorum"),
                floor=0,
            ),
        ],
    )
