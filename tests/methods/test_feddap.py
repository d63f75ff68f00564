"""Tests of FedDAP against a plain loop in float64 and values computed by hand."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet import Data
from protofleet.coordinator.devices.domains import assign_domain, claim_problem
from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.lab.local.experiment import Experiment
from protofleet.methods import fedavg, feddap
from protofleet.methods.contract.base import Member, Reply
from protofleet.methods.maths.fusion import similarity_mean
from protofleet.methods.parts.domains import domain_id
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from protofleet.protocol.settings.reader import SettingsError, decode
from protofleet.testing import simulate
from tests.methods.plain import DATA, LOCAL, PRESENT, averaged, fit, halves, order_of
from tests.methods.tiny import answer, normal, play, same
from tests.support.small_federation import POLICY, assert_same, shard, simulation

HYPER = feddap.Hyper(**LOCAL, least_samples=1, lambda1=0.7, lambda2=0.4, tau=0.3, fusion_tau=0.5)
# In round 1, three devices of the street hold class 0. The only device of the field comes in round 3.
SHORT = replace(POLICY, rounds=1)
DOMAINS = dict.fromkeys(("device-0", "device-1", "device-2"), "street") | {"device-3": "field"}


def made(hyper=HYPER, domains=DOMAINS):
    server, clients = halves(feddap, hyper)
    for name, client in clients.items():
        client.domain = domains.get(name, "")
    return server, clients


def fused(rows, temperature):
    """Return the fusion of some devices' rows, device by device."""
    scores = [sum(float(F.cosine_similarity(a, b, dim=0)) for b in rows) / temperature for a in rows]
    shares = [math.exp(score - max(scores)) for score in scores]
    return sum(share / sum(shares) * row for share, row in zip(shares, rows, strict=True))


def alignment(z, y, table, domain, hyper):
    """Return the two extra terms, sample by sample; `table` maps (class, domain) to a row."""
    pulls, contrasts = [], []
    others = {place: row for place, row in table.items() if place[1] != domain}
    for row, label in zip(z, y.tolist(), strict=True):
        if (label, domain) in table:
            pulls.append(1 - F.cosine_similarity(row, table[label, domain], dim=0))
        e = {place: (F.cosine_similarity(row, g, dim=0) / hyper.tau).exp() for place, g in others.items()}
        same_class = [value for (c, _), value in e.items() if c == label]
        if same_class:
            contrasts.append(-torch.log(sum(same_class) / sum(e.values())))
    pull = torch.stack(pulls).mean() if pulls else 0.0
    return hyper.lambda1 * pull + hyper.lambda2 * (torch.stack(contrasts).mean() if contrasts else 0.0)


def plain(hyper, domains):
    table, sent, last = {}, {}, [0]

    def close_round():
        for place, rows in sent.items():
            table[place] = fused(rows, hyper.fusion_tau)
        sent.clear()

    def train(model, device, number):
        if number > last[0]:
            close_round()
            last[0] = number
        data, domain, seen = DATA[device], domains[device], []

        def loss(x, y):
            z = model.embed(x)
            seen.extend(zip(z.detach(), y.tolist(), strict=True))
            return F.cross_entropy(model.head(z), y) + alignment(z, y, table, domain, hyper)

        fit(model, list(model.parameters()), data, hyper.epochs, hyper, order_of(device, number), loss)
        for label in sorted(set(data.y.tolist())):
            mean = torch.stack([z for z, c in seen[-len(data.y) :] if c == label]).mean(0)
            sent.setdefault((label, domain), []).append(mean)

    shared, _ = averaged(PRESENT, train)
    close_round()
    return shared, table


def test_four_rounds_with_partial_cohorts_equal_those_of_a_plain_loop():
    server, clients = made()
    for number, present in enumerate(PRESENT, 1):
        play(server, {name: clients[name] for name in present}, number)
    shared, table = plain(HYPER, DOMAINS)
    payload = server.payload()
    for key, value in shared.items():
        assert_close(payload[f"weights.{key}"], value, rtol=1e-9, atol=1e-11)
    expected = {(label, domain_id(domain)): row for (label, domain), row in table.items()}
    assert list(zip(payload["labels"].tolist(), payload["domains"].tolist(), strict=True)) == sorted(expected)
    rows = torch.stack([expected[place] for place in sorted(expected)])
    assert_close(payload["prototypes"], rows, rtol=1e-9, atol=1e-11)
    assert {domain for _, domain in table} == {"street", "field"}


# The fusion


@pytest.mark.parametrize("temperature", [1e-6, 0.001, 0.5, 100.0])
def test_the_fusion_of_rows_equals_that_of_a_plain_loop(temperature):
    rows = normal(4, 6) + 1
    assert_close(similarity_mean(rows, temperature), fused(rows, temperature), rtol=1e-9, atol=1e-12)
    assert similarity_mean(torch.zeros(3, 6), temperature).tolist() == [0.0] * 6


def test_a_row_that_differs_from_the_others_has_less_weight():
    rows = torch.tensor([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0]])
    assert similarity_mean(rows, 0.001)[0] > 0.9
    assert_close(similarity_mean(rows, 1e6), rows.mean(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("domains", [{}, {name: f"of {name}" for name in DATA}], ids=["unnamed", "named"])
def test_the_fusion_changes_nothing_if_each_domain_has_one_device(domains):
    server, clients = made(replace(HYPER, fusion_tau=0.001), domains)
    (up,) = play(server, clients, 1)
    payload = server.payload()
    place = {
        (c, d): i
        for i, (c, d) in enumerate(zip(*(payload[k].tolist() for k in ("labels", "domains")), strict=True))
    }
    assert len(place) == sum(len(sent["labels"]) for sent in up.values())
    for name, sent in up.items():
        for label, row in zip(sent["labels"].tolist(), sent["prototypes"], strict=True):
            assert torch.equal(payload["prototypes"][place[label, domain_id(domains.get(name, name))]], row)


# The method


def test_only_the_first_round_equals_fedavg():
    (server, clients), (other, others) = made(), halves(fedavg, HYPER)
    for number, alike in ((1, True), (2, False)):
        play(server, clients, number)
        play(other, others, number)
        assert same(weights_of(server.model), weights_of(other.model)) == alike


def test_the_model_without_both_terms_equals_that_of_fedavg():
    (server, clients), (other, others) = made(replace(HYPER, lambda1=0.0, lambda2=0.0)), halves(fedavg, HYPER)
    for number in (1, 2):
        play(server, clients, number)
        play(other, others, number)
    assert same(weights_of(server.model), weights_of(other.model))


def test_rows_of_the_domain_of_the_device_are_not_part_of_the_contrast():
    client = made()[1]["device-3"]
    rows, labels = normal(4, 6), torch.tensor([0, 0, 1, 1])
    domains = torch.tensor([domain_id(name) for name in ("field", "street", "field", "street")])
    client.receive({"prototypes": rows, "labels": labels, "domains": domains})
    z, y = normal(5, 6, seed=1), torch.tensor([0, 1, 2, 2, 1])
    table = {(0, "field"): rows[0], (0, "street"): rows[1], (1, "field"): rows[2], (1, "street"): rows[3]}
    assert_close(client.alignment(z, y), alignment(z, y, table, "field", HYPER), rtol=1e-9, atol=1e-12)
    assert client.alignment(z[2:4], y[2:4]) == 0  # Class 2 has no row.


def test_a_class_that_no_device_of_a_domain_holds_in_a_round_keeps_its_row():
    server, clients = made()
    play(server, clients, 1)
    before = dict(server.table)
    play(server, {"device-3": clients["device-3"]}, 2)  # The field has only class 1.
    changed = {place for place, row in server.table.items() if not torch.equal(row, before[place])}
    assert changed == {(1, domain_id("field"))} and server.table.keys() == before.keys()


def test_rows_of_one_class_from_one_device_count_as_one():
    server, clients = made()
    server.begin(1, [Member("device-0", 24, (), "street"), Member("device-1", 18, (), "street")])
    story = server.round()
    ask = next(story)
    sent = answer(clients["device-0"], ask, 1)
    twice = {
        **sent,
        "prototypes": torch.stack([normal(6), normal(6, seed=1)]),
        "labels": torch.tensor([2, 2]),
    }
    once = {**sent, "prototypes": twice["prototypes"].mean(0, keepdim=True), "labels": torch.tensor([2])}
    with pytest.raises(StopIteration):
        story.send([Reply("device-0", 24, twice), Reply("device-1", 18, once)])
    assert_close(server.payload()["prototypes"], once["prototypes"])


def test_the_order_of_answers_changes_no_bit():
    replies, states = None, []
    for turn in (1, -1):
        server, clients = made()
        server.begin(1, [Member(name, len(c.data.y), (), c.domain) for name, c in clients.items()])
        story = server.round()
        ask = next(story)
        replies = replies or [Reply(n, len(c.data.y), answer(c, ask, 1)) for n, c in sorted(clients.items())]
        with pytest.raises(StopIteration):
            story.send(replies[::turn])
        states.append(snapshot(server.state()))
    assert same(*states)


def test_a_restored_server_continues_with_the_same_bits():
    server, clients = made()
    play(server, clients, 1)
    other, _ = made()
    other.restore(snapshot(server.state()))
    assert same(server.state(), other.state()) and len(server.state()["domains"]) == 4
    for half in (server, other):
        play(half, {"device-3": clients["device-3"]}, 2)
    assert same(server.state(), other.state())


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("prototypes", torch.full((1, 6), math.nan).double(), "not finite"),
        ("prototypes", torch.full((1, 6), 1e7).double(), "above 1e"),
        ("labels", torch.tensor([3]), "labels has 3, above 2"),
        ("labels", torch.tensor([0, 1]), "with held = 1"),
    ],
)
def test_hostile_rows_are_refused(name, value, words):
    server, clients = made()
    server.begin(1, [Member("device-3", 6, (), "field")])
    ask = next(server.round())
    sent = answer(clients["device-3"], ask, 1)
    assert len(sent["labels"]) == 1 and words in ask.problem_with({**sent, name: value}, 6).message


# Domains


def test_an_experiment_with_a_domain_that_the_method_does_not_list_is_refused():
    def read(**method):
        return decode(Experiment, {"name": "a", "rounds": 1, "data": {"source": "digits"}, "method": method})

    words = "the device mnist cannot take part: its domain is 'mnist', and in method.domains there are street, field"
    with pytest.raises(SettingsError, match=words):
        read(name="feddap", domains=["street", "field"])
    every = sorted({data.domain for data in read(name="fedavg").shards.values()})
    assert read(name="feddap", domains=every).plan.variant.domains == tuple(every)
    with pytest.raises(SettingsError, match="a list of different names"):
        read(name="feddap", domains=["a", "a"])


def test_a_domain_belongs_to_its_first_device_or_to_the_listed_devices():
    known = {}
    assign_domain("a", "street", known, {})
    assert claim_problem("a", "street", known, {}) == claim_problem("b", "field", known, {}) == ""
    words = claim_problem("b", "street", known, {})
    assert (
        words.startswith("its domain 'street' counts as 'street (b)'") and "add the device to limits" in words
    )
    assert claim_problem("b", "street", known, {"street": ("a", "b")}) == ""
    assert "counts as 'street'" in claim_problem("a", "field", known, {})  # It may not change its domain.
    assert known == {"a": "street"}


def test_simulate_gives_both_halves_the_domains_of_the_data_and_refuses_others():
    samples = DATA["device-0"].x.float().numpy(), DATA["device-0"].y.numpy()
    data = {
        name: Data(train=samples, test=samples, classes=3, domain=domain) for name, domain in DOMAINS.items()
    }
    settings = {"epochs": 1, "domains": ["street", "field"]}
    found = simulate("feddap", data, rounds=1, settings=settings)
    assert {domain for _, domain in found.server.table} == {domain_id("street"), domain_id("field")}
    assert {name: client.domain for name, client in found.clients.items()} == DOMAINS
    with pytest.raises(SettingsError, match="device-3 cannot take part: its domain is 'field'"):
        simulate("feddap", data, rounds=1, settings={"domains": ["street"]})


def with_domain(name, domain, i):
    return {name: replace(shard(i), domain=domain)}


WRONG_DOMAINS = {
    "of another device": ("domain-1", (), "its domain 'domain-1' counts as 'domain-1 (device-9)'"),
    "not in the plan": (
        "harbour",
        ("domain-0", "domain-1", "domain-2"),
        "its domain is 'harbour', and in method.",
    ),
}


@pytest.mark.parametrize("kind", WRONG_DOMAINS)
def test_a_device_with_a_wrong_domain_is_refused_and_the_others_learn(kind, tmp_path, caplog):
    domain, allowed, words = WRONG_DOMAINS[kind]
    shards, hyper = with_domain("device-9", domain, 4), {"domains": list(allowed)}
    run = simulation(tmp_path, "feddap", policy=SHORT, hyper=hyper, shards=shards).run()
    assert set(run.service.run.machine.roster) == {"device-0", "device-1", "device-2"}
    (line,) = {record.getMessage() for record in caplog.records if "device-9 cannot" in record.getMessage()}
    assert words in line and "\n" not in line
    assert run.service.run.server_runner.server.payload()["domains"].unique().numel() == 3
    halves_of = {name: run.agents[name].run.job.half.domain for name in run.service.run.machine.roster}
    assert halves_of == {f"device-{i}": f"domain-{i}" for i in range(3)}


@pytest.mark.slow
def test_devices_of_a_domain_share_a_row_also_after_a_crash_of_the_coordinator(tmp_path):
    limits = CoordinatorLimits(domains={"domain-1": ("device-1", "device-9")})
    more = {"shards": with_domain("device-9", "domain-1", 4), "limits": limits}
    policy = replace(POLICY, quorum=4, cohort=4)
    unbroken = simulation(tmp_path / "a", "feddap", policy=policy, **more).run()
    broken = simulation(tmp_path / "b", "feddap", policy=policy, **more)
    broken.clock.call_at(2.0, broken.boot_coordinator)
    assert_same(unbroken, broken.run())
    every = {f"domain-{i}" for i in range(3)}
    payload = broken.service.run.server_runner.server.payload()
    assert set(payload["domains"].tolist()) == {domain_id(domain) for domain in every}
    assert {one.domain for one in broken.service.run.participants.members.values()} == every
