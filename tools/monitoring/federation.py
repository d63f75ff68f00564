"""Define the dashboard for the progress of the runs, for its accuracy, and for the cost of a round."""

from __future__ import annotations

from typing import Any

from tools.monitoring.panels import dashboard, stat, time_series
from tools.monitoring.queries import (
    ACCURACY,
    CHOSEN,
    COMMITTED,
    DOMAIN,
    FEDAVG,
    OURS,
    RUN,
    VIEW,
    recent_mean,
)


def federation() -> dict[str, Any]:
    description = "Progress of the runs, accuracy, and what a round costs."
    return dashboard(
        "protofleet-federation",
        "protofleet: Federation",
        description,
        [RUN, DOMAIN, VIEW],
        [
            stat(
                "Round",
                "none",
                (f"protofleet_round{CHOSEN}", "{{run}} in hand"),
                (f"protofleet_rounds_planned{CHOSEN}", "{{run}} planned"),
            ),
            stat(
                "Devices",
                "none",
                (f"protofleet_devices_present{CHOSEN}", "{{run}} present"),
                (f"protofleet_quorum{CHOSEN}", "{{run}} quorum"),
            ),
            stat(
                "Mean accuracy",
                "percentunit",
                (f"avg by (run, view) ({ACCURACY})", "{{run}} {{view}}"),
                description="over the chosen domains, by run and view",
            ),
            stat(
                "Since the last round",
                "s",
                (f"time() - {COMMITTED}", "{{run}}"),
                warn=600,
                description="RoundStalled is raised at twice the time that most rounds take",
            ),
            stat(
                "Next round in",
                "s",
                (f"clamp_min(protofleet_round_next_timestamp_seconds{CHOSEN} - time(), 0)", "{{run}}"),
                description="while policy.pause_seconds or policy.hours delay it; 0 while a round runs",
            ),
            stat(
                "Saved against FedAvg",
                "percentunit",
                (f"1 - sum by (run) ({OURS}) / sum by (run) ({FEDAVG})", "{{run}}"),
                warn=0,
                bad_below=True,
                description="compared with FedAvg's bytes: the same network's weights, up and in one broadcast down",
            ),
            time_series(
                "Accuracy by domain",
                "percentunit",
                (ACCURACY, "{{run}} {{domain}} ({{view}})"),
                width=12,
                description="on each domain's own test samples",
            ),
            time_series(
                "Loss by domain",
                "none",
                (
                    'protofleet_loss{run=~"$run", domain=~"$domain", view=~"$view"}',
                    "{{run}} {{domain}} ({{view}})",
                ),
                width=12,
            ),
            time_series(
                "Participants",
                "none",
                (f"protofleet_round_invited{CHOSEN}", "{{run}} invited"),
                (f"protofleet_round_accepted{CHOSEN}", "{{run}} accepted"),
                (f"protofleet_round_late{CHOSEN}", "{{run}} late"),
                (f"protofleet_round_failed{CHOSEN}", "{{run}} refused"),
                floor=0,
                description="in the last round; late ones are stragglers",
            ),
            time_series(
                "Seconds a round",
                "s",
                (recent_mean("protofleet_round_duration_seconds"), "{{run}} mean of 15 minutes"),
                (f"protofleet_round_seconds{CHOSEN}", "{{run}} the last one"),
                (
                    f"max by (run) (protofleet:round_seconds:p95{CHOSEN})",
                    "{{run}} 95 % of a day's rounds took no longer",
                ),
                floor=0,
            ),
            time_series(
                "Seconds by phase",
                "s",
                (recent_mean("protofleet_round_phase_seconds"), "{{run}} {{phase}}"),
                floor=0,
                description="mean of 15 minutes, from asking to closing",
            ),
            time_series(
                "Tensor bytes a round, beside FedAvg's",
                "bytes",
                (f"sum by (run, direction) (protofleet_round_bytes{CHOSEN})", "{{run}} {{direction}}"),
                (f"protofleet_round_fedavg_bytes{CHOSEN}", "{{run}} {{direction}}, FedAvg"),
                floor=0,
            ),
            time_series(
                "Budgets",
                "percentunit",
                (
                    f"protofleet_budget_used_ratio{CHOSEN}",
                    "{{run}} {{limit}}: used by the device that has used most",
                ),
                floor=0,
                description="in a run with a budget (docs/budget.md)",
            ),
            time_series(
                "Devices with a spent budget",
                "none",
                (f"protofleet_budget_devices_spent{CHOSEN}", "{{run}} {{limit}}"),
                floor=0,
                description="they get no task, because their budget does not hold one more round",
            ),
            time_series(
                "Privacy budgets",
                "percentunit",
                (
                    f"protofleet_privacy_epsilon{CHOSEN} / on (instance, run, unit) group_left () "
                    f"protofleet_privacy_epsilon_limit{CHOSEN}",
                    "{{run}} {{device}}: used epsilon",
                ),
                floor=0,
                description="in a run with dp (docs/dp.md)",
            ),
            time_series(
                "Answers",
                "none",
                (f"increase(protofleet_updates_total{CHOSEN}[5m])", "{{run}} {{verdict}}"),
                floor=0,
                description="in five minutes",
            ),
            time_series(
                "Rounds behind",
                "none",
                (recent_mean("protofleet_update_staleness_rounds"), "{{run}} mean of 15 minutes"),
                floor=0,
                description="of all answers when they arrived; 0 if none was late",
            ),
            time_series(
                "Repeated rounds",
                "none",
                (f"protofleet_rounds_repeated_total{CHOSEN}", "{{run}} because the quorum was not reached"),
                (f"protofleet_rounds_without_sum_total{CHOSEN}", "{{run}} without a masked sum"),
                floor=0,
            ),
        ],
    )
