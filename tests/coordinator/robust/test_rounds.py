"""Tests of whole rounds under the rules of [policy.robust], with the halves of the methods."""

import json

import pytest
import torch

from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile, read_rounds
from protofleet.coordinator.robust.fit import accepted_rules
from protofleet.coordinator.round.robust import RULES, Robust
from protofleet.coordinator.server.stepper import Stepper
from protofleet.coordinator.spool.spool import Accepted
from protofleet.lab.contract.halves import Halves, answer_of, close
from protofleet.lab.contract.worlds import final_state, policy_with
from protofleet.methods.contract.base import Member
from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.parts.state import snapshot
from tests.support.few_methods import few_steps

ACCEPTING = [name for name in names() if accepted_rules(load(name))]
ROBUST = [rule for rule in RULES if rule != "mean"]
MEMBERS = 5


def few(methods):
    """Return all methods for `parametrize`; only one of weights and one of prototypes is not marked slow."""
    quick = ("fedavg", "fedproto")
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in methods]


def robust_of(method, rule):
    return Robust(**dict.fromkeys(accepted_rules(load(method)), rule))


def stepped(method, robust, lie=None, rounds=1):
    """Run rounds in which all devices send the answer of the first one, except a device that sends a lie."""
    plan = few_steps(method).plan()
    halves, sent = Halves(plan), {}
    client, examples = halves.clients["device-0"], len(halves.data["device-0"].y)
    counts = tuple(halves.data["device-0"].y.bincount(minlength=3).tolist())
    stepper = Stepper(plan, 0.0, 0, lambda one: LazyPayload(to_numpy(sent[one.device])), robust=robust)
    members = [Member(f"device-{i}", examples, counts) for i in range(MEMBERS)]
    for number in range(1, rounds + 1):
        client.begin(number)
        ask = stepper.begin(number, members)
        while ask:
            payload = answer_of(client, ask)
            sent.update({member.device: payload for member in members})
            if lie and ask.phase in plan.variant.averaged:
                sent["device-2"] = lie(payload)
            answers = {m.device: Accepted(m.device, b"", b"", examples, {}) for m in members}
            ask = stepper.send(answers)
    single = [name for one in plan.variant.averaged.values() for name in one.single]
    return {n: value for n, value in snapshot(stepper.server.state()).items() if n not in single}


def opposite(payload):
    return {
        name: -1e37 * value.sign() - 1e37 if value.is_floating_point() else value
        for name, value in payload.items()
    }


@pytest.mark.parametrize("rule", ["cap", "trimmed"])
@pytest.mark.parametrize("method", few(ACCEPTING))
def test_devices_that_agree_leave_the_same_state_with_a_rule_as_with_the_mean(method, rule):
    plain, found = stepped(method, None, rounds=2), stepped(method, robust_of(method, rule), rounds=2)
    assert plain.keys() == found.keys()
    assert [name for name, value in plain.items() if not close(value, found[name])] == []


@pytest.mark.parametrize("rule", [rule for rule in ROBUST if rule != "cap"])
@pytest.mark.parametrize("method", ["fedavg", "fedproto", "fedhp"])
def test_one_liar_of_five_changes_no_array_if_all_others_agree(method, rule):
    honest, lied = stepped(method, None), stepped(method, robust_of(method, rule), opposite)
    assert [name for name, value in honest.items() if not close(value, lied[name])] == []
    ruined = stepped(method, None, opposite)
    assert any(not close(value, ruined[name]) for name, value in honest.items())


@pytest.mark.parametrize("method", few(names()))
def test_a_policy_of_means_changes_no_bit(method):
    plain, found = stepped(method, None), stepped(method, Robust())
    assert all(torch.equal(value, found[name]) for name, value in plain.items())


def run_under(subject, folder, robust, crash_at=None):
    run = subject.simulation(folder, policy=policy_with(robust=robust))
    if crash_at is not None:
        run.clock.call_at(crash_at, run.boot_coordinator)
    return run.run()


@pytest.mark.parametrize(
    "rule",
    [
        "clip_median",
        *(
            pytest.param(rule, marks=pytest.mark.slow)
            for rule in ("cap", "trimmed", "median", "geometric", "multikrum")
        ),
    ],
)
@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedproto", marks=pytest.mark.slow)])
def test_a_coordinator_that_crashed_ends_with_the_bits_of_an_unbroken_run(method, rule, tmp_path):
    subject, robust = few_steps(method), robust_of(method, rule)
    whole = final_state(run_under(subject, tmp_path / "whole", robust))
    plain = final_state(subject.simulation(tmp_path / "plain").run())
    broken = final_state(run_under(subject, tmp_path / "broken", robust, crash_at=2.0))
    assert whole.keys() == broken.keys()
    assert all(torch.equal(value, broken[name]) for name, value in whole.items())
    server = [name for name in whole if name.startswith("server/")]
    # `cap` adds numbers in another order than the method, so some last bits differ.
    same = all(torch.allclose(whole[name], plain[name], rtol=0, atol=1e-7) for name in server)
    assert same == (rule == "cap"), (
        "only `cap` keeps the mean while no difference is far larger than the others"
    )


def test_each_line_of_a_training_round_names_the_rules(tmp_path):
    rounds = RoundsFile(tmp_path / "rounds.jsonl")
    robust = Robust(weights="trimmed")
    run = few_steps("fedavg").simulation(tmp_path / "run", policy=policy_with(robust=robust))
    keep_journal(run.service.run, [rounds])
    run.run()
    *training, last = read_rounds(tmp_path / "rounds.jsonl")
    assert {json.dumps(line["robust"]) for line in training} == {'{"weights": "trimmed"}'}
    assert last["robust"] == {}
