"""Repeat an experiment in this process and keep the answers, so that a run need not keep any byte.

The halves, the messages and the random draws are those of a run, so the accuracies of each round must be the same. A
run whose results depend on time or on a codec cannot be repeated in this way.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from protofleet.lab.api.simulated import Federation, SimulatedRound
from protofleet.lab.leakage.domain_samples import DomainSamples
from protofleet.lab.leakage.observed import Exchange, Observed
from protofleet.lab.local.experiment import Experiment
from protofleet.methods.contract.torch_setup import compute_as_a_device
from protofleet.protocol.settings.reader import SettingsError

FIRST_AND_LAST: Final[Collection[int]] = ()


@dataclass(frozen=True)
class Repeated:
    """The answers of a repeated experiment, and its results for a comparison with the run."""

    observed: Observed
    rounds: list[SimulatedRound]


def repeated(experiment: Experiment, rounds: Collection[int] = FIRST_AND_LAST) -> Repeated:
    """Repeat the experiment and keep the answers of these rounds, by default of the first and the last round."""
    if reason := unrepeatable(experiment):
        raise SettingsError(f"{experiment.name} cannot be repeated in one process: {reason}")
    compute_as_a_device()
    wanted = set(rounds) or {1, experiment.rounds}
    samples, kept = DomainSamples(experiment.shards, experiment.own_plugins.allowed()), list[Exchange]()

    def keep(exchange: Exchange) -> None:
        if exchange.number in wanted:
            kept.append(exchange)

    federation = Federation(
        experiment.plan, samples.shards, reboots=False, tap=lambda *parts: keep(Exchange(*parts))
    )
    done = federation.train()
    halves = federation.halves
    truths = {name: replace(one, half=halves[name]) for name, one in samples.truths().items()}
    return Repeated(Observed(experiment.plan, "repeated", kept, federation.counts, truths), done)


def unrepeatable(experiment: Experiment) -> str:
    """Return why the experiment cannot be repeated in one process; "" if it can."""
    policy, coding = experiment.effective_policy, experiment.plan.codec
    if coding is not None:
        return "the codec rounds the arrays of a run; repeat it with `codec` left out"
    plan = experiment.plan
    if plan.secagg is not None or plan.dp is not None:
        return "its devices mask or noise their answers (secagg, dp), and the repetition would show plain answers"
    if policy.robust is not None and policy.robust.rules:
        return "its coordinator has a robust rule (policy.robust), which the repetition does not apply"
    if experiment.networks:
        return "its devices have different networks (devices.networks)"
    if policy.buffered or policy.cohort:
        return "its cohorts are drawn or depend on time (policy.mode, policy.cohort)"
    return ""
