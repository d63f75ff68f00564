"""Tests of FedNCM against a plain loop, and of what its class means show."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from protofleet.methods import fedncm
from protofleet.methods.contract.base import Ask
from tests.methods.plain import DATA, PRESENT, WITHOUT_2, halves, network, played
from tests.methods.tiny import SHARDS, Shard, clients_of, play, server_of


def features(x, hyper):
    """Return the features of samples by the network as the run begins, in numpy."""
    with torch.no_grad():
        z = network().eval().embed(x).numpy()
    if hyper.features == "raw":
        return z
    return z * np.sqrt(z.shape[1]) / np.linalg.norm(z, axis=1, keepdims=True)


def plain(hyper, data, rounds=PRESENT):
    """Return the mean of each class over all devices that have answered, from the sums of each device."""
    sums, counts = {}, {}
    for name in sorted({name for present in rounds for name in present}):
        z, y = features(data[name].x, hyper), data[name].y.numpy()
        for c in sorted(set(y.tolist())):
            if (own := int((y == c).sum())) >= hyper.least_samples:
                sums[c] = sums.get(c, 0) + z[y == c].sum(0)
                counts[c] = counts.get(c, 0) + own
    return {c: sums[c] / counts[c] for c in sorted(sums)}


@pytest.mark.parametrize("data", [DATA, WITHOUT_2], ids=["all classes", "a class that no device holds"])
@pytest.mark.parametrize(
    "hyper",
    [
        fedncm.Hyper(),
        fedncm.Hyper(metric="euclidean"),
        fedncm.Hyper(features="raw", metric="euclidean", least_samples=1),
    ],
    ids=["default", "euclidean", "the paper's numbers"],
)
def test_four_rounds_equal_those_of_a_plain_loop(data, hyper):
    server, clients = played(fedncm, hyper, data)
    means, head = plain(hyper, data), server.payload()
    assert head["labels"].tolist() == list(means) == sorted(means)
    for row, mean in zip(head["head"].numpy(), means.values(), strict=True):
        wanted = mean / np.linalg.norm(mean) if hyper.metric == "cosine" else mean
        np.testing.assert_allclose(row, wanted, rtol=1e-9, atol=1e-12)
    client = clients["device-1"]
    client.receive(head)
    z = features(client.data.x, hyper)
    near = np.stack([
        z @ m / np.linalg.norm(m) if hyper.metric == "cosine" else -((z - m) ** 2).sum(1) for m in means.values()
    ])  # fmt: skip
    found = client.model.eval() and client.predict(client.data.x).argmax(1)
    assert found.tolist() == [list(means)[i] for i in near.argmax(0)]


def test_class_means_of_float32_features_are_exact_to_float32():
    server, clients = server_of(fedncm.METHOD, fedncm.Hyper()), clients_of(fedncm.METHOD, fedncm.Hyper())
    play(server, clients, 1)
    wide, exact = halves(fedncm, fedncm.Hyper(), {k: v for k, v in DATA.items() if k in SHARDS})
    for half in (wide, *exact.values()):
        half.model = server_of(fedncm.METHOD, fedncm.Hyper()).model.double()
    play(wide, exact, 1)
    assert_close(server.payload()["head"].double(), wide.payload()["head"], rtol=0, atol=1e-6)


def test_the_network_is_not_trained_and_tasks_have_an_empty_broadcast():
    server, clients = server_of(fedncm.METHOD, fedncm.Hyper()), clients_of(fedncm.METHOD, fedncm.Hyper())
    before = {name: value.clone() for name, value in clients["device-0"].model.state_dict().items()}
    for number in (1, 2):
        server.begin(number, [])
        assert next(server.round()) == Ask("describe", {}, server.wants())
        play(server, clients, number)
    after = clients["device-0"].model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_the_head_does_not_depend_on_the_split_of_samples_over_devices():
    whole = Shard(*(torch.cat([getattr(part, name) for part in DATA.values()]) for name in ("x", "y")))
    split = {f"part-{i}": Shard(whole.x[i::3], whole.y[i::3]) for i in range(3)}
    one, two, three = (
        played(fedncm, fedncm.Hyper(least_samples=1), data, (tuple(data),))[0].payload()["head"]
        for data in (DATA, split, {"all": whole})
    )
    assert_close(one, two, rtol=1e-9, atol=1e-12)
    assert_close(one, three, rtol=1e-9, atol=1e-12)
