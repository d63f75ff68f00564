"""Define the dashboard for the progress of the run, for its accuracy, and for the cost of a round."""

from __future__ import annotations

from typing import Any

from tools.monitoring.panels import dashboard, stat, time_series
from tools.monitoring.queries import ACCURACY, COMMITTED, DOMAIN, FEDAVG, OURS, VIEW, recent_mean


def federation() -> dict[str, Any]:
    description = "Progress of the run, accuracy, and what a round costs."
    return dashboard(
        "protofleet-federation",
        "protofleet: Federation",
        description,
        [DOMAIN, VIEW],
        [
            stat(
                "Round",
                "none",
                ("protofleet_round", "in hand"),
                ("protofleet_rounds_planned", "planned"),
            ),
            stat(
                "Devices",
                "none",
                ("protofleet_devices_present", "present"),
                ("protofleet_quorum", "quorum"),
            ),
            stat(
                "Mean accuracy",
                "percentunit",
                (f"avg by (view) ({ACCURACY})", "{{view}}"),
                description="over the chosen domains, by view",
            ),
            stat(
                "Since the last round",
                "s",
                (f"time() - {COMMITTED}", ""),
                warn=600,
                description="RoundStalled is raised at twice the time that most rounds take",
            ),
            stat(
                "Next round in",
                "s",
                ("clamp_min(protofleet_round_next_timestamp_seconds - time(), 0)", ""),
                description="while policy.pause_seconds or policy.hours delay it; 0 while a round runs",
            ),
            stat(
                "Saved against FedAvg",
                "percentunit",
                (f"1 - sum({OURS}) / sum({FEDAVG})", ""),
                warn=0,
                bad_below=True,
                description="compared with FedAvg's bytes: the same network's weights, up and in one broadcast down",
            ),
            time_series(
                "Accuracy by domain",
                "percentunit",
                (ACCURACY, "{{domain}} ({{view}})"),
                width=12,
                description="on each domain's own test samples",
            ),
            time_series(
                "Loss by domain",
                "none",
                ('protofleet_loss{domain=~"$domain", view=~"$view"}', "{{domain}} ({{view}})"),
                width=12,
            ),
            time_series(
                "Participants",
                "none",
                ("protofleet_round_invited", "invited"),
                ("protofleet_round_accepted", "accepted"),
                ("protofleet_round_late", "late"),
                ("protofleet_round_failed", "refused"),
                floor=0,
                description="in the last round; late ones are stragglers",
            ),
            time_series(
                "Seconds a round",
                "s",
                (recent_mean("protofleet_round_duration_seconds"), "mean of 15 minutes"),
                ("protofleet_round_seconds", "the last one"),
                ("max(protofleet:round_seconds:p95)", "95 % of a day's rounds took no longer"),
                floor=0,
            ),
            time_series(
                "Seconds by phase",
                "s",
                (recent_mean("protofleet_round_phase_seconds"), "{{phase}}"),
                floor=0,
                description="mean of 15 minutes, from asking to closing",
            ),
            time_series(
                "Tensor bytes a round, beside FedAvg's",
                "bytes",
                ("sum by (direction) (protofleet_round_bytes)", "{{direction}}"),
                ("protofleet_round_fedavg_bytes", "{{direction}}, FedAvg"),
                floor=0,
            ),
            time_series(
                "Budgets",
                "percentunit",
                ("protofleet_budget_used_ratio", "{{limit}}: used by the device that has used most"),
                floor=0,
                description="in a run with a budget (docs/budget.md)",
            ),
            time_series(
                "Devices with a spent budget",
                "none",
                ("protofleet_budget_devices_spent", "{{limit}}"),
                floor=0,
                description="they get no task, because their budget does not hold one more round",
            ),
            time_series(
                "Answers",
                "none",
                ("increase(protofleet_updates_total[5m])", "{{verdict}}"),
                floor=0,
                description="in five minutes",
            ),
            time_series(
                "Rounds behind",
                "none",
                (recent_mean("protofleet_update_staleness_rounds"), "mean of 15 minutes"),
                floor=0,
                description="of all answers when they arrived; 0 if none was late",
            ),
            time_series(
                "Repeated rounds",
                "none",
                ("protofleet_rounds_repeated_total", "because the quorum was not reached"),
                floor=0,
            ),
        ],
    )
