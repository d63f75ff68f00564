"""Tests of FedNova against a plain loop, and of the bounds for the number of steps."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import fedavg, fednova
from protofleet.methods.contract.base import Member, Reply
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.state import snapshot
from tests.methods.plain import DATA, LOCAL, PRESENT, fit, halves, network, order_of, played
from tests.methods.tiny import Shard, answer, member, same

HYPER = LocalHyper(**LOCAL)


def test_four_rounds_with_partial_cohorts_equal_those_of_a_plain_loop():
    server, _ = played(fednova, HYPER)
    model = network()
    for number, present in enumerate(PRESENT, 1):
        start = {k: v.clone() for k, v in model.state_dict().items()}
        total, came = sum(len(DATA[name].y) for name in present), {}
        for name in present:
            model.load_state_dict(start)
            fit(
                model, list(model.parameters()), DATA[name], HYPER.epochs, HYPER, order_of(name, number),
                lambda x, y: F.cross_entropy(model(x), y),
            )  # fmt: skip
            came[name] = {k: v.clone() for k, v in model.state_dict().items()}
        p = {name: len(DATA[name].y) / total for name in present}
        a = {name: counted(len(DATA[name].y)) for name in present}
        learned = {key for key, _ in model.named_parameters()}
        for key, w in start.items():
            change = sum(p[n] * (w - came[n][key]) / a[n] for n in present) * sum(
                p[n] * a[n] for n in present
            )
            share = {n: p[n] / a[n] / sum(p[m] / a[m] for m in present) for n in present}
            if key in learned:
                start[key] = w - change
            elif w.is_floating_point():
                start[key] = sum(share[n] * came[n][key] for n in present)
            else:
                start[key] = came[present[0]][key]
        model.load_state_dict(start)
    for key, value in model.state_dict().items():
        assert_close(server.payload()[f"weights.{key}"], value, rtol=1e-9, atol=1e-11)


def counted(examples):
    """Return the sum over all gradients of the weight that momentum gives to each one in these steps."""
    steps = HYPER.epochs * math.ceil(examples / HYPER.batch)
    return sum(sum(HYPER.momentum**j for j in range(steps - i)) for i in range(steps))


def test_fednova_with_equal_numbers_of_steps_equals_fedavg():
    data = {name: Shard(part.x[:6], part.y[:6]) for name, part in DATA.items()}
    server, _ = played(fednova, HYPER, data)
    other, _ = played(fedavg, fedavg.Hyper(**LOCAL), data)
    for key, value in other.payload().items():
        assert_close(server.payload()[key], value, rtol=1e-12, atol=1e-13)


def asked(cohort=tuple(DATA)):
    server, clients = halves(fednova, HYPER)
    server.begin(1, [member(name, clients[name]) for name in cohort])
    story = server.round()
    return server, clients, story, next(story)


@pytest.mark.parametrize("steps", [0.0, -3.0, 0.99, 1e9, math.nan, math.inf])
def test_an_impossible_number_of_steps_is_refused(steps):
    _, clients, _, ask = asked()
    sent = answer(clients["device-0"], ask, 1)
    assert ask.problem_with({**sent, "steps": torch.tensor([steps], dtype=torch.float64)})
    assert ask.problem_with({**sent, "steps": torch.tensor([2.0, 2.0], dtype=torch.float64)})


def test_a_device_that_trained_on_more_samples_than_it_stated_is_refused():
    _, clients, _, ask = asked()
    server, _ = halves(fednova, HYPER)
    server.begin(1, [Member("device-0", 8)])
    small = next(server.round())
    sent = answer(clients["device-0"], ask, 1)
    assert "steps" in small.problem_with(sent).message


def after(order, claimed=None):
    """Return the model after a round in which device-2 claims this number of steps."""
    server, clients, story, ask = asked()
    sent = {name: dict(answer(clients[name], ask, 1)) for name in order}
    if claimed:
        sent["device-2"]["steps"] = torch.tensor([claimed], dtype=torch.float64)
    with pytest.raises(StopIteration):
        story.send([Reply(name, len(DATA[name].y), sent[name]) for name in order])
    return snapshot(server.payload())


def test_the_steps_of_a_device_are_capped_by_its_number_of_examples():
    """The bound of the task is that of the largest device, which device-2 is not."""
    own, largest = counted(len(DATA["device-2"].y)), counted(len(DATA["device-0"].y))
    assert own < largest
    assert same(after(sorted(DATA), own * 1.5), after(sorted(DATA)))
    assert not same(after(sorted(DATA), own * 0.5), after(sorted(DATA)))


def test_the_order_of_answers_changes_no_bit():
    assert same(after(sorted(DATA)), after(sorted(DATA, reverse=True)))
