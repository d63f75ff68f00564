"""Tests of ADCOL against a plain loop and against values computed by hand."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import adcol, fedavg
from protofleet.methods.contract.base import Reply, seeded
from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.nets import mlp
from protofleet.methods.nets.base import initialised_from
from protofleet.methods.parts.state import names_from_tensor, snapshot
from tests.methods.plain import DATA, LOCAL, PRESENT, batches, fit, halves, network, order_of, played
from tests.methods.tiny import Shard, answer, floats, member, play, same

HYPER = adcol.Hyper(**LOCAL, mu=2.0, server_epochs=2, server_batch=16, server_lr=0.05)
TWO_CLASSES = {name: Shard(part.x, part.y.clamp(max=1)) for name, part in DATA.items()}
WIDTH, D = 16, network().embedding_size
LATE_FIRST = (
    ("device-2", "device-3"),
    ("device-0", "device-2"),
    ("device-1", "device-2"),
    ("device-0", "device-3"),
)


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr(mlp, "HIDDEN", WIDTH)  # 512 in the code of the paper.


def new_discriminator(outputs):
    """Return a discriminator as a server of seed 7 makes it, with layers without biases."""
    with initialised_from(seeded(7, "server", "amplifier", outputs).initial_seed()):
        layers = [nn.Linear(D, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.ReLU()]
        layers += [nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(WIDTH, outputs, bias=False)).double()


def plain(hyper, data, rounds=PRESENT):
    models, numbers = {name: network() for name in data}, []
    teller, speed = new_discriminator(max(hyper.clients, 1)), {}
    for number, present in enumerate(rounds, 1):
        numbers += [name for name in sorted(present) if name not in numbers]
        if len(numbers) > len(teller[6].weight):
            old, teller = teller, new_discriminator(len(numbers))
            last = teller[6].weight.detach().clone()
            last[: len(old[6].weight)] = old[6].weight.detach()
            teller.load_state_dict({**old.state_dict(), "6.weight": last})
        pool, owners = [], []
        teller.eval()
        for name in sorted(present):
            model, part = models[name], data[name]

            def loss(x, y, model=model, teller=teller):
                z = model.embed(x)
                p = teller(z).softmax(1)
                apart = ((1 / p.shape[1]) * ((1 / p.shape[1]) / p).log()).sum(1).mean()
                return F.cross_entropy(model.head(z), y) + hyper.mu * apart

            fit(model, list(model.parameters()), part, hyper.epochs, hyper, order_of(name, number), loss)
            with torch.no_grad():
                pool.append(model.eval().embed(part.x))
            owners += [numbers.index(name)] * len(part.y)
        everything = Shard(torch.cat(pool), torch.tensor(owners))
        order = seeded(7, number, "server", "fit")
        for z, owner in batches(teller, everything, hyper.server_batch, hyper.server_epochs, order):
            F.cross_entropy(teller(z), owner).backward()
            with torch.no_grad():
                for key, w in teller.named_parameters():
                    step = w.grad + hyper.server_weight_decay * w
                    before = speed.get(key, torch.zeros_like(w))
                    before = torch.cat([before, torch.zeros_like(w[len(before) :])])
                    speed[key] = hyper.server_momentum * before + step
                    w -= hyper.server_lr * speed[key]
                    w.grad = None
    return models, teller, numbers


@pytest.mark.parametrize("data", [DATA, TWO_CLASSES], ids=["three classes", "a class that no device holds"])
@pytest.mark.parametrize("rounds", [PRESENT, LATE_FIRST], ids=["in order", "device-2 first"])
@pytest.mark.parametrize("clients", [0, 5])
def test_four_rounds_equal_those_of_a_plain_loop(clients, rounds, data):
    hyper = replace(HYPER, clients=clients)
    server, clients = played(adcol, hyper, data, rounds)
    models, teller, numbers = plain(hyper, data, rounds)
    assert server.payload() == {} and names_from_tensor(server.state()["devices"]) == numbers
    for key, value in teller.state_dict().items():
        assert_close(server.state()[f"discriminator.{key}"], value, rtol=1e-8, atol=1e-10)
    for name, model in models.items():
        for key, value in model.state_dict().items():
            assert_close(clients[name].model.state_dict()[key], value, rtol=1e-8, atol=1e-10)


def test_devices_send_only_features_and_the_server_sends_only_the_discriminator():
    server, clients = halves(adcol, HYPER)
    server.begin(1, [member(name, client) for name, client in clients.items()])
    down = next(server.round()).payload
    learned = {key: v for key, v in down.items() if "running" not in key and "tracked" not in key}
    assert floats(learned) == {"discriminator": D * WIDTH + WIDTH * WIDTH + 4 * WIDTH + 4 * WIDTH}
    up = play(server, clients, 1)[0]
    for name, payload in up.items():
        assert floats(payload) == {"features": len(DATA[name].y) * D}
        with torch.no_grad():
            assert torch.equal(payload["features"], clients[name].model.eval().embed(DATA[name].x))
    assert not same(clients["device-0"].model.state_dict(), clients["device-1"].model.state_dict())


def test_the_term_is_zero_with_one_output_and_its_gradient_reaches_only_the_device():
    client = halves(adcol, HYPER)[1]["device-0"]
    x, y = client.data.x, client.data.y
    # With one output of the discriminator only the cross entropy is left.
    assert_close(client.objective(x, y), F.cross_entropy(client.model(x), y))
    server, clients = halves(adcol, HYPER)
    play(server, clients, 1)
    client.receive({key: v for key, v in snapshot(server.state()).items() if key.startswith("discriminator")})
    before = snapshot(client.D.state_dict())
    assert client.objective(x, y) > F.cross_entropy(client.model(x), y) + 1e-6
    client.objective(x, y).backward()
    assert all(p.grad is None for p in client.D.parameters()) and not client.D.training
    assert same(client.D.state_dict(), before)


def test_a_device_with_mu_0_learns_alone():
    hyper = replace(HYPER, mu=0.0)
    server, clients = halves(adcol, hyper)
    play(server, clients, 1)
    model, data = network(), DATA["device-0"]
    loss = lambda x, y: F.cross_entropy(model(x), y)  # noqa: E731
    fit(model, list(model.parameters()), data, hyper.epochs, hyper, order_of("device-0", 1), loss)
    assert_close(clients["device-0"].model.state_dict(), model.state_dict(), rtol=1e-10, atol=1e-12)


def test_average_models_averages_the_models_and_reports_the_global_model():
    hyper = replace(HYPER, average_models=True, mu=0.0)
    server, _ = played(adcol, hyper)
    other, _ = played(fedavg, fedavg.Hyper(**LOCAL))
    for key, value in other.payload().items():
        assert_close(server.payload()[key], value, rtol=1e-10, atol=1e-12)
    method = adcol.METHOD.under(hyper)
    assert method.reports == "global" and not method.mixed_networks
    assert adcol.METHOD.under(HYPER) is adcol.METHOD and adcol.METHOD.mixed_networks
    again = adcol.METHOD.Server(network(), hyper, 7)
    again.restore(snapshot(server.state()))
    assert same(again.payload(), server.payload())


def test_the_cost_with_averaged_models_equals_the_sent_numbers():
    hyper = replace(HYPER, average_models=True)
    server, clients = halves(adcol, hyper)
    up = play(server, clients, 1)[0]["device-1"]
    learned = sum(p.numel() for p in network().parameters())
    buffers = sum(b.numel() for b in network().buffers())
    assert floats(up) == {"weights": learned + buffers, "features": 18 * D}
    from_form = adcol.METHOD.under(hyper).cost(
        Sizes(clients["device-1"].model, held=2, examples=18, clients=4)
    )
    assert from_form.up == {"weights": learned, "features": 18 * D}
    assert from_form.down["weights"] == learned


@pytest.mark.parametrize("average", [False, True])
def test_the_cost_with_outputs_for_later_devices_equals_the_sent_numbers(average):
    hyper = replace(HYPER, clients=9, average_models=average)
    server, clients = halves(adcol, hyper)
    server.begin(1, [member(name, client) for name, client in clients.items()])
    down = next(server.round()).payload
    learned = {
        key: v for key, v in down.items() if key.startswith("discriminator.") and v.is_floating_point()
    }
    sent = sum(v.numel() for key, v in learned.items() if "running" not in key)
    sizes = Sizes(clients["device-1"].model, held=2, examples=18, clients=len(clients))
    assert adcol.METHOD.under(hyper).cost(sizes).down["discriminator"] == sent
    more = replace(sizes, clients=11)
    assert adcol.METHOD.under(hyper).cost(more).down["discriminator"] == sent + 2 * WIDTH


def test_the_networks_of_a_device_include_a_discriminator_of_the_received_size():
    outputs = lambda half: [len(n[-1].weight) for n in half.networks() if n is not half.model]  # noqa: E731
    server, clients = halves(adcol, HYPER)
    assert outputs(clients["device-0"]) == [1]
    play(server, clients, 1)
    assert outputs(clients["device-0"]) == [len(clients)]
    assert outputs(halves(adcol, replace(HYPER, clients=9))[1]["device-0"]) == [9], (
        "before the device has received anything"
    )


def test_a_restored_server_and_a_restored_device_continue_with_the_same_bits():
    server, clients = played(adcol, HYPER)
    again = adcol.METHOD.Server(network(), HYPER, 7)
    again.restore(snapshot(server.state()))
    assert same(again.state(), server.state())
    other = adcol.METHOD.Client(network(), DATA["device-0"], HYPER, 7, "device-0")
    other.restore(snapshot(clients["device-0"].state()))
    play(again, {"device-0": other}, 5)
    play(server, {"device-0": clients["device-0"]}, 5)
    assert same(again.state(), server.state()) and same(other.state(), clients["device-0"].state())


def test_the_order_of_answers_and_their_storage_on_disk_change_no_bit():
    up = play(*halves(adcol, HYPER), 1)[0]
    states = []
    for order in itertools.permutations(DATA):
        for stored in (False, True):
            server, clients = halves(adcol, HYPER)
            server.begin(1, [member(name, client) for name, client in clients.items()])
            story = server.round()
            next(story)
            payloads = {name: LazyPayload(to_numpy(up[name])) if stored else up[name] for name in order}
            with pytest.raises(StopIteration):
                story.send([Reply(name, len(DATA[name].y), payloads[name]) for name in order])
            states.append(server.state())
    assert all(same(states[0], other) for other in states)


def test_too_many_features_and_too_large_features_are_refused():
    server, clients = halves(adcol, HYPER)
    server.begin(1, [member(name, client) for name, client in clients.items()])
    ask = next(server.round())
    sent = answer(clients["device-1"], ask, 1)
    assert ask.problem_with(sent, 18) is None
    assert "of a device with 17 examples" in ask.problem_with(sent, 17).message
    assert "features has" in ask.problem_with({"features": sent["features"] + 1e7}, 18).message


def test_the_monitor_reports_the_number_of_features_and_the_loss_of_the_discriminator():
    server, clients = halves(adcol, replace(HYPER, server_epochs=40))
    play(server, clients, 1)
    figures = server.monitor()
    assert figures["features"] == sum(len(part.y) for part in DATA.values())
    assert figures["loss.discriminator"] < math.log(4)


@pytest.mark.parametrize(
    "setting, value, problem",
    [
        ("mu", -0.1, "mu is -0.1, it must be at least 0"),
        ("clients", 65_537, "clients is 65_537, it must be at least 0 and at most 65_536"),
        ("server_momentum", 1.0, "server_momentum is 1.0, it must be at least 0 and below 1"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(setting, value, problem):
    with pytest.raises(ValueError) as error:
        adcol.Hyper(**{setting: value})
    assert str(error.value).startswith(problem)
