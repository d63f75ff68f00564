"""Tests of FedDistill against a plain loop and values computed by hand."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import feddistill
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.parts.state import snapshot
from tests.methods.plain import DATA, LOCAL, PRESENT, WITHOUT_2, fit, halves, network, order_of, played
from tests.methods.test_oracles import case, check
from tests.methods.tiny import CLASSES, Shard, floats, play, tiny

HYPER = feddistill.Hyper(**LOCAL, lam=0.7)


def plain(hyper, of=DATA):
    """Run FedDistill as a plain loop and return the target of each class and the model of each device."""
    models, targets = {name: network() for name in of}, {}
    for number, present in enumerate(PRESENT, 1):
        sent = {}
        for name in present:
            model, data, seen = models[name], of[name], {}

            def loss(x, y, model=model, seen=seen):
                logits = model(x)
                for row, label in zip(logits.detach(), y.tolist(), strict=True):
                    seen.setdefault(label, []).append(row)
                held = [i for i, label in enumerate(y.tolist()) if label in targets]
                rows = [targets[int(y[i])] for i in held]
                soft = rows if hyper.raw_targets else [row.softmax(0) for row in rows]
                extra = F.cross_entropy(logits[held], torch.stack(soft)) if held else 0.0
                return F.cross_entropy(logits, y) + hyper.lam * extra

            fit(model, list(model.parameters()), data, hyper.epochs, hyper, order_of(name, number), loss)
            if hyper.proto_source == "eval":
                with torch.no_grad():
                    logits = model.eval()(data.x)
                seen = {label: list(logits[data.y == label]) for label in data.y.unique().tolist()}
            sent[name] = {label: torch.stack(rows).mean(0) for label, rows in seen.items()}
        for label in range(CLASSES):
            rows = [means[label] for means in sent.values() if label in means]
            if rows:
                targets[label] = torch.stack(rows).mean(0)
    return targets, models


VARIANTS = ({}, {"proto_source": "eval"}, {"raw_targets": True, "lam": 0.1})


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("data", [DATA, WITHOUT_2], ids=["all classes", "without one"])
def test_four_rounds_equal_those_of_a_plain_loop(data, variant):
    hyper = replace(HYPER, **variant)
    server, clients = played(feddistill, hyper, data)
    targets, models = plain(hyper, data)
    payload = server.payload()
    assert payload["labels"].tolist() == sorted(targets)
    assert (2 in targets) == (data is DATA)
    for label, row in zip(payload["labels"].tolist(), payload["prototypes"], strict=True):
        assert_close(row, targets[label], rtol=1e-10, atol=1e-12)
    for name, model in models.items():
        for key, value in model.state_dict().items():
            assert_close(clients[name].model.state_dict()[key], value, rtol=1e-10, atol=1e-12)


def test_samples_of_a_class_without_a_row_are_not_part_of_the_mean():
    client = halves(feddistill, HYPER)[1]["device-0"]
    x, y = client.data.x, client.data.y
    assert_close(client.objective(x, y), F.cross_entropy(client.model(x), y))
    client.receive({"prototypes": torch.eye(CLASSES).double()[:1], "labels": torch.tensor([0])})
    logits, held = client.model(x), y == 0
    soft = torch.eye(CLASSES).double()[:1].softmax(1).expand(int(held.sum()), -1)
    assert_close(client.distillation(logits, y), F.cross_entropy(logits[held], soft))


def test_raw_targets_uses_the_logits_as_targets():
    client = halves(feddistill, replace(HYPER, raw_targets=True))[1]["device-0"]
    rows = torch.randn(CLASSES, CLASSES, dtype=torch.float64)
    client.receive({"prototypes": rows, "labels": torch.arange(CLASSES)})
    logits, y = client.model(client.data.x), client.data.y
    assert_close(client.distillation(logits, y), -(rows[y] * logits.log_softmax(1)).sum(1).mean())


@pytest.mark.parametrize(
    ("raw", "key"), [(True, "code_raw_logits_as_targets"), (False, "recommended_softmax_targets")]
)
def test_the_distillation_term_equals_the_oracle(raw, key):
    given, expected = case("feddistill.term")
    client = halves(feddistill, replace(HYPER, raw_targets=raw))[1]["device-0"]
    client.receive({"prototypes": given["global_class_logits"].expand(1, -1), "labels": torch.tensor([1])})
    check(expected, **{key: client.distillation(given["logits"], torch.tensor([1]))})


def test_devices_with_different_networks_send_one_mean_for_each_of_their_classes():
    server = feddistill.METHOD.Server(tiny(), HYPER, 7)
    clients = {
        name: feddistill.METHOD.Client(
            tiny(i, norm=i == 1, projector=i != 2), Shard(part.x.float(), part.y), HYPER, 7, name
        )
        for i, (name, part) in enumerate(DATA.items())
    }
    up = play(server, clients, 1)[0]
    held = {"device-0": 3, "device-1": 2, "device-2": 2, "device-3": 1}
    assert {n: floats(p) for n, p in up.items()} == {
        n: {"prototypes": 3 * c, "labels": c, "counts": c} for n, c in held.items()
    }
    assert up["device-1"]["counts"].tolist() == [9, 9], "each sample counts once for any number of epochs"


def test_the_embedding_of_a_device_in_feddistill_is_its_scores():
    plan = Plan("feddistill", CLASSES, 1, size=16, network=Network("mlp", 16))
    own = plan.device_model(Network("cnn4", 24, head="mlp"))
    x = torch.rand(5, 3, 16, 16)
    client = feddistill.METHOD.Client(own.eval(), Shard(x, torch.arange(5) % CLASSES), HYPER, 7, "a")
    assert own.embedding_size == 24 != plan.model().embedding_size
    assert torch.equal(client.embedding(x), own(x))


def test_an_absent_device_keeps_its_model_and_takes_the_newest_targets():
    server, clients = played(feddistill, HYPER)
    away = clients["device-2"]
    again = feddistill.METHOD.Client(network(), DATA["device-2"], HYPER, 7, "device-2")
    again.restore(snapshot(away.state()))
    for client in (away, again):
        client.receive(snapshot(server.payload()))
    assert torch.equal(away.predict(away.data.x), again.predict(again.data.x))
    assert torch.equal(away.targets, again.targets) and away.known.all()
