"""Tests of FedHEAL against a plain loop in float64 and values computed by hand."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.coordinator.server.stepper import Stepper
from protofleet.lab.local.experiment import Experiment
from protofleet.methods import fedheal
from protofleet.methods.contract.base import Member, Reply
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.maths.consistency import keeps_sign, masked_mean, next_step
from protofleet.methods.parts.parameters import count_learned, parts_of
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from protofleet.protocol.settings.reader import SettingsError, decode
from tests.methods.plain import DATA, LOCAL, PRESENT, fit, halves, network, order_of
from tests.methods.tiny import Shard, answer, play, same
from tests.support.small_federation import simulation

# A table for K devices takes 4 K bytes per parameter of the tiny network, which has 148 parameters.
PARAMETERS = 8 * 4 + 8 + 8 + 8 + 6 * 8 + 6 + 3 * 6 + 3
HYPER = fedheal.Hyper(**LOCAL, threshold=0.5)
LONGER = (*PRESENT, *PRESENT)  # Eight rounds, so that shares have more values than 0, a half and 1.


def made(hyper=HYPER, data=DATA):
    server, clients = halves(fedheal, hyper, data)
    server.fleet = len(data)
    return server, clients


def played(hyper=HYPER, rounds=PRESENT, data=DATA):
    server, clients = made(hyper, data)
    for number, present in enumerate(rounds, 1):
        play(server, {name: clients[name] for name in present}, number)
    return server, clients


def trained(world, name, number, hyper):
    model = copy.deepcopy(world)

    def loss(x, y):
        return F.cross_entropy(model(x), y)

    fit(model, list(model.parameters()), DATA[name], hyper.epochs, hyper, order_of(name, number), loss)
    return model


def usual(past, update, hyper):
    """Return the mask of an update, number by number; `past` are the device's earlier updates."""
    old, mask = [one.flatten().tolist() for one in past], []
    for i, value in enumerate(update.flatten().tolist()):
        same = sum((numbers[i] >= 0) == (value >= 0) for numbers in old)
        mask.append(float(not old or same / len(old) > hyper.threshold))
    return torch.tensor(mask, dtype=update.dtype).view_as(update)


def plain(hyper, rounds):
    """Return the model, the weights q and the share of masked numbers, from loops over devices and numbers."""
    world, past, q, steps, d, left_out = network(), {}, {}, {}, {}, []
    for number, present in enumerate(rounds, 1):
        models = {name: trained(world, name, number, hyper) for name in present}
        learned = [key for key, _ in world.named_parameters()]
        before = copy.deepcopy(world.state_dict())
        updates, masks = {}, {}
        for name in present:
            updates[name] = {key: before[key] - models[name].state_dict()[key] for key in learned}
            known = past.setdefault(name, [])
            masks[name] = {
                key: usual([old[key] for old in known], updates[name][key], hyper) for key in learned
            }
            d[name] = sum(float((masks[name][key] * updates[name][key]).norm()) for key in learned)
            left_out.append(sum(float((1 - mask).sum()) for mask in masks[name].values()) / PARAMETERS)
        for name in present:
            steps[name] = (1 - hyper.beta) * steps.get(name, 0.0) + hyper.beta * d[name] / sum(d.values())
            q[name] = q.get(name, 1 / len(DATA)) + steps[name]
            past[name].append(updates[name])
        state = {}
        for key, value in before.items():
            if key in learned:
                share = sum(q[name] * masks[name][key] for name in present)
                total = sum(q[name] * masks[name][key] * updates[name][key] for name in present)
                state[key] = value - torch.where(share > 0, total / share, 0.0)
            elif value.is_floating_point():
                whole = sum(q[name] for name in present)
                state[key] = sum(q[name] / whole * models[name].state_dict()[key] for name in present)
            else:
                state[key] = models[present[0]].state_dict()[key]
        world.load_state_dict(state)
    return world, q, left_out


@pytest.mark.parametrize(("threshold", "rounds"), [(0.3, PRESENT), (0.5, LONGER)])
def test_rounds_with_partial_cohorts_equal_those_of_a_plain_loop(threshold, rounds):
    hyper = replace(HYPER, threshold=threshold)
    server, _ = played(hyper, rounds)
    world, q, left_out = plain(hyper, rounds)
    for key, value in world.state_dict().items():
        assert_close(server.model.state_dict()[key], value, rtol=1e-9, atol=1e-12)
    assert {name: one.weight for name, one in server.known.items()} == pytest.approx(q, rel=1e-9)
    assert max(left_out) > 0.1, "the masks leave nothing out, so this test shows nothing"


# Formulas


def test_a_mask_keeps_a_number_whose_sign_has_a_share_above_the_threshold():
    update, rises = torch.tensor([1.0, -1.0, 0.0, -0.0]), torch.tensor([3, 3, 4, 10])
    assert keeps_sign(update, rises, 10, 0.3).tolist() == [False, True, True, True]
    for rounds in (1, 3, 10, 29, 100):
        for threshold in (0.0, 0.29, 0.3, 0.5, 1.0):
            rises = torch.arange(rounds + 1)
            found = keeps_sign(torch.ones(rounds + 1), rises, rounds, threshold).tolist()
            assert found == [int(n) > round(threshold * rounds, 6) for n in rises]


def test_the_masked_mean_of_a_number_uses_only_devices_whose_mask_keeps_it():
    updates = [torch.tensor([1.0, 2.0, 5.0]), torch.tensor([3.0, 4.0, 7.0])]
    masks = [torch.tensor([True, False, False]), torch.tensor([True, True, False])]
    found = masked_mean(zip(updates, masks, (1.0, 3.0), strict=True))
    assert found.tolist() == [2.5, 4.0, 0.0] and found.dtype == torch.float64


def test_the_step_of_a_weight_is_a_moving_mean_of_the_shares_of_the_distance():
    assert next_step(0.5, 2.0, 8.0, 0.4) == pytest.approx(0.6 * 0.5 + 0.4 * 0.25)
    assert next_step(0.5, 0.0, 0.0, 0.4) == pytest.approx(0.3)


# The method


def test_the_model_of_the_first_round_with_equal_weights_is_the_plain_mean():
    hyper = replace(HYPER, beta=0.0)
    server, clients = made(hyper)
    (up,) = play(server, clients, 1)
    for key, value in server.payload().items():
        if value.is_floating_point():
            assert_close(value, sum(sent[key] for sent in up.values()) / len(up), rtol=1e-9, atol=1e-12)


def test_a_number_whose_sign_is_unusual_on_every_device_does_not_change():
    server, _ = made(replace(HYPER, threshold=0.3))
    names = ("device-0", "device-1")
    for number, sign in enumerate((1, 1, 1, -1), 1):
        before = snapshot(weights_of(server.model))
        answer_all(server, dict.fromkeys(names, sign), number)
        moved = {key: not torch.equal(before[key], value) for key, value in weights_of(server.model).items()}
        parameters = {f"weights.{key}" for key, _ in server.model.named_parameters()}
        assert {moved[key] for key in parameters} == {number < 4}
        assert moved["weights.features.1.running_mean"]  # Statistics have no mask.


def answer_all(server, signs, number):
    """Play a round in which the devices add or subtract 1 from everything that is not a whole number."""
    server.begin(number, [Member(name, 5) for name in signs])
    story = server.round()
    ask = next(story)
    replies = [Reply(name, 5, shifted(ask.payload, sign)) for name, sign in signs.items()]
    with pytest.raises(StopIteration):
        story.send(replies)


def shifted(payload, sign):
    return {
        key: value + sign if value.is_floating_point() else value.clone() for key, value in payload.items()
    }


def test_rounds_are_counted_for_each_device():
    server, _ = played()
    expected = {name: sum(name in present for present in PRESENT) for name in DATA}
    assert {name: one.rounds for name, one in server.known.items()} == expected
    for one in server.known.values():
        assert int(one.rises.min()) >= 0 and int(one.rises.max()) <= one.rounds


def test_running_statistics_are_averaged_with_the_same_weights():
    server, clients = made()
    (up,) = play(server, clients, 1)
    q = {name: server.known[name].weight for name in up}
    for key in ("weights.features.1.running_mean", "weights.features.1.running_var"):
        mean = sum(q[name] / sum(q.values()) * up[name][key] for name in up)
        assert_close(server.payload()[key], mean, rtol=1e-9, atol=1e-12)


def test_a_device_with_a_larger_update_gets_a_larger_weight():
    server, _ = made()
    answer_all(server, {"device-0": 1, "device-1": 3}, 1)
    near, far = (server.known[name] for name in ("device-0", "device-1"))
    assert far.distance == pytest.approx(3 * near.distance)
    assert (near.weight, far.weight) == pytest.approx((1 / 4 + 0.4 / 4, 1 / 4 + 0.4 * 3 / 4))
    answer_all(server, {"device-0": 1}, 2)
    assert server.known["device-1"] is far


def test_a_device_without_samples_changes_nothing():
    (server, clients), (other, others) = made(), made()
    nobody = Shard(DATA["device-0"].x[:0], DATA["device-0"].y[:0])
    late = halves(fedheal, HYPER, {"device-9": nobody})[1]
    play(server, clients, 1)
    play(other, {**others, **late}, 1)
    assert same(server.state(), other.state())


def test_the_order_of_answers_changes_no_bit():
    server, clients = made()
    other, _ = made()
    for number in (1, 2):
        asks = []
        for half in (server, other):
            half.begin(number, [Member(name, len(c.data.y)) for name, c in clients.items()])
            story = half.round()
            asks.append((next(story), story))
        replies = [
            Reply(name, len(c.data.y), answer(c, asks[0][0], number)) for name, c in sorted(clients.items())
        ]
        for (_, story), came in zip(asks, (replies, replies[::-1]), strict=True):
            with pytest.raises(StopIteration):
                story.send(came)
    assert same(server.state(), other.state())


def test_a_restored_server_continues_with_the_same_bits():
    server, clients = played(rounds=PRESENT[:2])
    other, _ = made()
    other.restore(snapshot(server.state()))
    assert other.known.keys() == server.known.keys() == {"device-0", "device-1", "device-2"}
    for half in (server, other):
        play(half, clients, 3)
    assert same(server.state(), other.state())


# Memory


def test_a_table_has_four_bytes_for_each_parameter_and_none_for_statistics():
    server, clients = made()
    play(server, clients, 1)
    assert count_learned(server.model) == PARAMETERS
    for one in server.known.values():
        assert one.rises.nbytes == 4 * PARAMETERS
        assert {key.removeprefix("weights.") for key in parts_of(one.rises, server.model)} == {
            key for key, _ in server.model.named_parameters()
        }


def test_devices_without_room_in_the_tables_count_as_in_their_first_round():
    hyper = replace(HYPER, table_bytes=2 * 4 * PARAMETERS)
    server, _ = made(hyper)
    for number in (1, 2, 3):
        answer_all(server, {"device-0": 1, "device-1": 1, "device-2": 1 if number < 3 else -1}, number)
    assert [len(server.known[name].rises) > 0 for name in sorted(server.known)] == [True, True, False]
    last = server.known["device-2"]
    assert last.rounds == 0 and last.distance == pytest.approx(server.known["device-0"].distance)
    other, _ = made(hyper)
    other.restore(snapshot(server.state()))
    assert same(other.state(), server.state())


def table(**more):
    method = {"name": "fedheal", "table_bytes": 1_000_000, **more}
    network = {"name": "cnn_bn", "feature_size": 512}
    return {"name": "a", "rounds": 1, "method": method, "network": network, "data": {"source": "digits"}}


def test_an_experiment_whose_tables_are_too_large_is_refused_before_it_starts():
    plan = decode(Experiment, table(table_bytes=1 << 30)).plan
    size = 6 * 4 * count_learned(plan.model())
    with pytest.raises(SettingsError) as refused:
        decode(Experiment, table(table_bytes=size - 1))
    assert str(refused.value).endswith(
        f"fedheal: the tables of 6 devices take {size:,} bytes, but method.table_bytes is {size - 1:,}; "
        f"set method.table_bytes = {size}, or use a smaller network or fewer devices"
    )
    decode(Experiment, table(table_bytes=size))


def test_a_too_large_fleet_is_refused_at_the_start_of_the_first_round():
    plan = Plan("fedheal", 2, 3, shape=(12,), network=Network("mlp"), hyper={"table_bytes": 10_000})
    members = [Member("device-0", 5), Member("device-1", 5)]
    fits = 10_000 // (4 * count_learned(plan.model()))

    def stepper(fleet):
        return Stepper(plan, math.inf, 0, dict, 0.0, lambda: fleet)

    with pytest.raises(
        SettingsError, match=f"fedheal: the tables of {fits + 1} devices take .* is 10,000; set"
    ):
        stepper(fits + 1).begin(1, members)
    stepper(fits).begin(1, members)
    stepper(fits + 1).begin(2, members)  # The size of the fleet is checked only when the run begins.


def test_a_coordinator_whose_fleet_is_refused_ends_with_the_reason(tmp_path):
    run = simulation(tmp_path, "fedheal", hyper={"table_bytes": 10_000})
    with pytest.raises(SettingsError, match="fedheal: the tables of 3 devices take .* bytes"):
        run.run()
