"""Check a method in a small federation in virtual time, with messages between the two halves.

In some of these runs, frames are lost or processes are killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from protofleet.coordinator.observe.measured import names_of
from protofleet.coordinator.round.events import Drop
from protofleet.lab.contract.halves import left_out
from protofleet.lab.contract.worlds import (
    ContractError,
    RunPolicy,
    Subject,
    final_state,
    policy_with,
    require,
    require_finished,
    require_same,
    shard,
    training_rounds,
)
from protofleet.lab.simulation.federation import Simulation
from protofleet.lab.simulation.network import NetworkConditions
from protofleet.methods.contract.base import Ask, ClientHalf, Payload
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.served.card import CardError
from protofleet.methods.served.kept import Kept, KeptOrigin, pieces_of_kept, read_kept
from protofleet.methods.served.rebuild import rebuild
from protofleet.methods.served.served import rules_of

# A failure happens this number of seconds after the start of a round. The devices are then still computing, because
# a computation takes one second.
INTO_A_ROUND: Final = 0.5
ROUGH: Final = NetworkConditions(jitter=0.5, repeat=0.5)
LOSSY: Final = NetworkConditions(jitter=0.3, loss=0.2)
SHORT: Final = RunPolicy(
    rounds=3, quorum=1, cohort=3, patience_seconds=20.0, grace_seconds=1.0, settle_seconds=0.5
)
TWO_OF_THREE: Final = RunPolicy(rounds=2, quorum=2, cohort=3, patience_seconds=20.0, settle_seconds=0.5)
SPOILT: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "not finite": lambda v: v * float("nan"),
    "wrong shape": lambda v: v.flatten()[:1],
    "wrong type": lambda v: v.double() if v.dtype != torch.float64 else v.float(),
}


# Checks of a run without failures.


def learns(subject: Subject, run: Simulation) -> None:
    require_finished(run, "the run does not come to its end")
    rounds = training_rounds(run)
    require(run.service.run.machine.round == rounds + 2, "the run has another number of rounds")
    view = run.service.run.plan.variant.reports
    found = [agent.state.saved.answers[-1].metrics for agent in run.agents.values()]
    worst = min(metrics[f"accuracy.test.{view}"] for metrics in found)
    classes = run.service.run.plan.classes
    require(
        worst > 2 / classes,
        f"accuracy is {worst:.1%} after {rounds} rounds, chance is {1 / classes:.1%}",
    )


def measures_its_own_views(subject: Subject, run: Simulation) -> None:
    """Require that devices measure only the views that the method names.

    A coordinator ignores other views, because otherwise one device could send any number of views.
    """
    names = names_of(run.service.run.plan.variant.views)
    for agent in run.agents.values():
        said = {name for answer in agent.state.saved.answers for name in answer.metrics}
        others = {name for name in said if not name.startswith("seconds.")} - names
        require(
            not others,
            f"its devices measure {', '.join(sorted(others))}, which Method.other_rules does not name",
        )


def tells_all_its_networks(subject: Subject, run: Simulation) -> None:
    """Require that networks() returns every network of a half, including networks that the half has received.

    A device compares the total size of these networks with its limits.
    """
    for half in halves_of(run):
        told = {p for network in half.networks() for p in network.parameters()}
        held = {name: part for name, part in vars(half).items() if isinstance(part, nn.Module)}
        hidden = [name for name, part in held.items() if not told.issuperset(part.parameters())]
        require(
            not hidden,
            f"networks() leaves out {', '.join(hidden)}, but the device needs memory for every network",
        )


def predicts_by_its_rule(subject: Subject, run: Simulation) -> None:
    """Require that predict gives the same scores as rule().

    An exported model consists of the network and rule(). It does not call `predict`.
    """
    for half in halves_of(run):
        half.model.eval()
        x = half.data.x[:5]
        with torch.no_grad():
            scores, again = half.predict(x), half.scores(x, half.rule())
        require(isinstance(half.rule(), nn.Module), "rule() is no torch module, so no model can be exported")
        classes = run.service.run.plan.classes
        require(
            tuple(scores.shape) == (5, classes),
            f"predict gives {list(scores.shape)}, it must be [5, {classes}]",
        )
        require(
            torch.equal(scores, again),
            "predict and the exported rule() give different scores for the same samples",
        )


def exports_each_way(subject: Subject, run: Simulation, folder: Path) -> None:
    """Require that each exported model gives the same scores as its half.

    A device keeps its model in a file. `protofleet export` builds the model again from that file alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plan = run.service.run.plan
    names = tuple(str(label) for label in range(plan.classes))
    for half in halves_of(run):
        half.model.eval()
        path, origin = (
            folder / f"{half.device}.safetensors",
            KeptOrigin(plan, half.device, plan.network, names),
        )
        path.write_bytes(b"".join(pieces_of_kept(half, origin, plan.rounds, None, {})))
        kept = read_kept(path)
        for way in kept.ways:
            require_same_scores(half, kept, way)


def require_same_scores(half: ClientHalf, kept: Kept, way: str) -> None:
    rule, samples = rules_of(half)[way], kept.card.input.drawn(5)
    try:
        again = rebuild(*kept.model(way))
    except CardError as error:
        raise ContractError(
            f"{type(rule).__name__}, the rule of the prediction mode {way!r}, cannot be exported: {error}; use a "
            "rule of parts/rules.py"
        ) from error
    with torch.no_grad():
        wanted = half.scores(again.scaling(samples), rule)
        found = again(samples)
    require(
        torch.allclose(found, wanted, rtol=1e-4, atol=1e-5),
        f"the exported model with the rule {way!r} gives the scores {found[0].tolist()}, but the half gives "
        f"{wanted[0].tolist()} here",
    )


def halves_of(run: Simulation) -> list[ClientHalf]:
    return [agent.run.job.half for agent in run.agents.values() if agent.run.job]  # type: ignore[attr-defined]


# Checks that a failure does not change a single bit of the result.


def repeats_change_nothing(subject: Subject, run: Simulation, folder: Path) -> None:
    require_same(run, subject.simulation(folder, ROUGH, seed=3).run())


def coding_without_loss_changes_nothing(subject: Subject, run: Simulation, folder: Path) -> None:
    """Require that the method gives the same bits with a codec that loses nothing, in both directions."""
    coded = subject.simulation(folder, codec="lossless").run()
    require_finished(coded, "the run does not come to its end with a codec")
    require_same(run, coded)


def lost_frames_change_nothing(subject: Subject, run: Simulation, folder: Path, seed: int = 0) -> None:
    patient = policy_with(patience_seconds=3000.0, grace_seconds=1000.0)
    lossy = subject.simulation(folder, LOSSY, seed, patient).run()
    require_finished(lossy, "the run does not come to its end where frames are lost")
    require_same(run, lossy)


def crashed_coordinator_changes_nothing(
    subject: Subject, run: Simulation, folder: Path, when: float = 2.0
) -> None:
    broken = subject.simulation(folder)
    rounds = training_rounds(run)
    broken.clock.call_at(when, broken.boot_coordinator)
    in_each_later_round(broken, rounds, broken.boot_coordinator)
    broken.run()
    require_finished(broken, "the run does not come to its end after a crash")
    first = when < run.clock.now  # A run of one round may be over before.
    require(broken.boots >= 1 + first + rounds, "the coordinator has not come back")
    require_nothing_lost(subject, run, broken)


def rebooted_device_changes_nothing(
    subject: Subject, run: Simulation, folder: Path, when: float = 2.0
) -> None:
    broken = subject.simulation(folder)
    device = sorted(broken.agents)[1]

    def reboot() -> None:
        if device not in broken.broker.clients:  # The device is already off.
            return
        broken.kill(device)
        broken.clock.call_at(broken.clock.now + 1.0, lambda: broken.boot_device(device))

    broken.clock.call_at(when, reboot)
    in_each_later_round(broken, training_rounds(run), reboot)
    broken.run()
    require_finished(broken, "the run does not come to its end after a reboot")
    require_nothing_lost(subject, run, broken)


def require_nothing_lost(subject: Subject, run: Simulation, broken: Simulation) -> None:
    try:
        require_same(run, broken)
    except ContractError as error:
        raise ContractError(f"{error}{left_out(subject)}") from error


def in_each_later_round(run: Simulation, rounds: int, harm: Callable[[], None]) -> None:
    """Call `harm` in each round after the first one, and in the evaluation after the last of `rounds` rounds.

    In the first round, most values that a method learns still have their initial values. If a half lost a
    value then, it would begin again with the initial value, and the check would not notice the loss.
    """

    def reached(number: int) -> bool:
        return run.service.finished or run.service.run.machine.round >= number

    for number in range(2, rounds + 2):
        run.run(until=partial(reached, number))
        run.clock.call_at(run.clock.now + INTO_A_ROUND, harm)


# Checks that one device cannot stop the others.


class Changed:
    """A builder of halves that changes the updates of device-1 before they are sent."""

    def __init__(self, change: Callable[[Payload], Payload]) -> None:
        self.change = change

    def __call__(self, device: str, plan: Plan, data: Any) -> ClientHalf:
        half = plan.client_half(data.train, device, validation=data.validation)
        if device == "device-1":
            honest = half.run

            def run(ask: Ask) -> Payload:
                return self.change(honest(ask))

            half.run = run  # type: ignore[method-assign]
        return half


def bad_device_stops_nobody(subject: Subject, folder: Path, fault: str) -> None:
    sent: list[bool] = []

    def spoil(answer: Payload) -> Payload:
        sent.append(any(v.is_floating_point() for v in answer.values()))
        return {k: SPOILT[fault](v) if v.is_floating_point() else v for k, v in answer.items()}

    run = subject.simulation(folder, policy=TWO_OF_THREE, build=Changed(spoil)).run()
    require_finished(run, f"a device whose answers are of {fault} stops the run")
    state = final_state(run)
    finite = all(v.isfinite().all() for name, v in state.items() if name.startswith("server"))
    require(finite, f"a device whose answers are of {fault} makes the server's state no number")
    refused = run.agents["device-1"].link.meter.messages["down", "receipt", "accepted"]
    require(
        refused > 0 or not any(sent), f"answers of {fault} are taken: say in Ask.wants what must come back"
    )


def wild_numbers_are_refused(subject: Subject, folder: Path) -> None:
    """Require that labels of unknown classes and counts below zero are refused."""
    wild: set[str] = set()

    def change(answer: Payload) -> Payload:
        whole = [k for k, v in answer.items() if v.dtype == torch.int64 and "." not in k]
        wild.update(whole)
        return {k: v - 10**6 if k in whole else v for k, v in answer.items()}

    watcher = Refusals()
    run = subject.simulation(folder, policy=TWO_OF_THREE, build=Changed(change), observers=[watcher]).run()
    require(run.service.finished, "a device with counts below zero stops the run")
    require(all(v.isfinite().all() for v in final_state(run).values()), "it makes a state that is no number")
    named = {device for device, _ in watcher.found}
    require(
        named == ({"device-1"} if wild else set()),
        f"{', '.join(sorted(wild))} below zero: refused was {', '.join(sorted(named)) or 'nobody'}, not device-1; "
        "give the TensorSpec a low",
    )
    words = [problem.message for _, problem in watcher.found if "below" not in problem.message]
    require(not words, f"refused with other words: {words[:1]}")


class Refusals:
    """An observer that collects the devices whose updates were refused, and the reasons."""

    def __init__(self) -> None:
        self.found: set[Any] = set()

    def happened(self, service: object, event: object, commands: Sequence[object], now: float) -> None:
        self.found |= {
            (c.device, c.problem) for c in commands if isinstance(c, Drop) and c.verdict == "refused"
        }

    def stepped(self, service: object, step: object, now: float) -> None:
        pass

    def answered(self, service: object, update: object, now: float) -> None:
        pass


# Checks of fleets whose devices differ much in their data.


def require_numbers(run: Simulation) -> None:
    require_finished(run, "the run does not come to its end")
    wrong = [name for name, value in final_state(run).items() if not value.isfinite().all()]
    require(not wrong, f"{', '.join(wrong[:3])} is no number")
    for agent in run.agents.values():
        for answer in agent.state.saved.answers:
            measured = {k: v for k, v in answer.metrics.items() if k.startswith("accuracy")}
            require(
                all(0 <= v <= 1 for v in measured.values()), f"an accuracy is outside of 0 to 1: {measured}"
            )


def comes_to_its_end(subject: Subject, run: Simulation) -> None:
    require_numbers(run)


def class_that_nobody_holds(subject: Subject, folder: Path) -> None:
    """Require that a run works with a class that no device holds, and with devices that hold only one class."""
    held = [(0,), (1,), (0, 1)]
    shards = {f"device-{i}": shard(i, classes=classes) for i, classes in enumerate(held)}
    require_numbers(subject.simulation(folder, policy=SHORT, shards=shards).run())


def fleet_of_one(subject: Subject, folder: Path) -> None:
    require_numbers(subject.simulation(folder, policy=SHORT, shards={"device-0": shard(0)}).run())


def two_samples_are_enough(subject: Subject, folder: Path) -> None:
    shards = {"device-0": shard(0), "device-1": shard(0, n=2)}
    require_numbers(subject.simulation(folder, policy=SHORT, shards=shards).run())


def late_device_takes_part(subject: Subject, folder: Path) -> None:
    run = subject.simulation(folder, policy=SHORT)
    run.kill("device-2")
    run.clock.call_at(2.2, lambda: run.boot_device("device-2"))
    run.run()
    require_numbers(run)
    last = run.agents["device-2"].state.saved.answers[-1].phase
    require(last == "evaluate", f"a device that came late answered {last} last, and not the last evaluation")


def devices_that_sit_out_go_on(subject: Subject, folder: Path) -> None:
    policy = RunPolicy(
        rounds=5, quorum=1, cohort=1, patience_seconds=20.0, grace_seconds=1.0, settle_seconds=0.5
    )
    require_numbers(subject.simulation(folder, policy=policy).run())


def network_with_batch_norm(subject: Subject, folder: Path) -> None:
    """Require that no running statistic of BatchNorm is refused or negative.

    A server may move the model farther than the mean of the updates. Such a step can make running variances
    negative, and a coordinator refuses negative variances. Therefore a server may apply such a step only to
    parameters, and not to statistics.
    """
    watcher, policy = Refusals(), policy_with(rounds=2)
    changed = replace(subject, network=Network("cnn_bn", feature_size=8))
    run = changed.simulation(folder, policy=policy, observers=[watcher]).run()
    words = sorted({problem.message for _, problem in watcher.found})
    require(
        not words,
        f"{words[:1]}: set each running statistic of BatchNorm to the mean of the updates, without a server step",
    )
    require_numbers(run)
    wrong = [k for k, v in final_state(run).items() if k.endswith("running_var") and bool((v < 0).any())]
    require(
        not wrong,
        f"{', '.join(wrong[:2])} is negative: apply the server step only to parameters, and average the statistics",
    )
