"""What crosses is what the closed form says, for every method that there is: through both halves, then the wire."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from protofleet import methods
from protofleet.methods.contract.base import Member, Reply
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.public import PublicSet
from protofleet.protocol.wire.arrays import KINDS
from tests.methods.tiny import answer, floats
from tests.support.few_methods import of_each_shape
from tests.support.small_federation import POLICY, shard, simulation

HOME = Path(methods.__file__).parent
METHODS = [name for name in names() if (HOME / f"{name}.py").exists()]  # without the tests' own shapes
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of BatchNorm: no paper counts them
NUMBER_BYTES = {"labels": 8, "counts": 8, "classes": 8}  # int64; all else is float32
PUBLIC = PublicSet().batches
LOCAL = {"epochs": 1, "batch": 8, "server_epochs": 1, "init_steps": 10}


def plan_of(name, **hyper):
    known = load(name).Hyper.__dataclass_fields__
    return Plan(name, 3, 3, 7, 8, Network("mlp"), {**{k: v for k, v in LOCAL.items() if k in known}, **hyper})


def ranks_of(payload, half):
    """Of each matrix that was sent in factors: laid flat, rank x (rows + columns + 1) numbers."""
    shared = getattr(half, "mutual", half.model).state_dict()
    found = {}
    for name, value in payload.items():
        whole = shared.get(name.removeprefix("weights."), value)
        if value.ndim < whole.ndim and len(value) < whole.numel():
            found[name] = len(value) // (len(whole) + whole[0].numel() + 1)
    return found


def counted(payload):
    return floats({k: v for k, v in payload.items() if not k.endswith(STATISTICS)})


def played(plan, rounds, classes=((0, 1, 2), (0, 1), (2,))):
    """For each round and device: its sizes, and the numbers that went up and down by kind."""
    shards = {f"device-{i}": shard(i, classes=held) for i, held in enumerate(classes)}
    data = {name: part.train for name, part in shards.items()}
    clients = {
        name: plan.client_half(part.train, name, validation=part.validation) for name, part in shards.items()
    }
    server = plan.server_half()
    for number in range(1, rounds + 1):
        members = [
            Member(n, len(p.y), tuple(p.y.bincount(minlength=3).tolist())) for n, p in sorted(data.items())
        ]
        server.begin(number, members)
        server_round, up, down = server.round(), {n: Counter() for n in clients}, Counter()
        ranks, ranks_down = {}, {}
        ask = next(server_round)
        while ask:
            down.update(counted(ask.payload))
            ranks_down |= ranks_of(ask.payload, server)
            sent = {n: answer(client, ask, number) for n, client in sorted(clients.items())}
            for n, payload in sent.items():
                up[n].update(counted(payload))
                ranks[n] = ranks_of(payload, clients[n])
            try:
                ask = server_round.send([Reply(n, len(data[n].y), p) for n, p in sent.items()])
            except StopIteration:
                ask = None
        for n, client in clients.items():
            D = client.model.embedding_size
            yield (
                Sizes(
                    client.model, held=len(set(data[n].y.tolist())), examples=len(data[n].y), clients=3,
                    local_prototypes=up[n]["prototypes"] // D, global_prototypes=down["prototypes"] // D,
                    first_round=number == 1, last_rounds="head" in up[n], ranks=ranks[n],
                    ranks_down=ranks_down, public=PUBLIC, known=len(set().union(*classes)),
                    mutual=getattr(client, "mutual", None),
                ),
                up[n],
                down,
            )  # fmt: skip


IN_FACTORS = {"travel": "parameters", "energy_first": 0.5, "energy_last": 0.5}  # both ways


OTHERWISE = [  # settings that change what crosses
    ("fedkd", IN_FACTORS),
    ("fednh", {"fixed_scale": True}),
    ("fednh", {"fixed_scale": True, "final_fit": True}),
    ("fcclplus", {"average": False}),
    ("fedgen", {"hidden": 16, "noise": 5}),
    ("fedgen", {"hidden": 16, "noise": 5, "generator": "untrained"}),
    ("adcol", {"clients": 5}),
    ("adcol", {"clients": 5, "average_models": True}),
]


@pytest.mark.parametrize("freeze", [None, "backbone"])
@pytest.mark.parametrize("name, hyper", [*((name, {}) for name in METHODS), *OTHERWISE])
def test_numbers_by_kind_are_the_closed_form(name, hyper, freeze):
    assert load(name).cost, f"{name} does not say what it costs"
    plan = replace(plan_of(name, **hyper), freeze=freeze)
    for sizes, up, down in played(plan, 3):
        cost = plan.variant.cost(sizes)
        assert some(cost.up) == some(up) and some(cost.down) == some(down)


def some(kinds):
    return {kind: numbers for kind, numbers in kinds.items() if numbers}


@pytest.mark.parametrize("name", METHODS)
def test_where_nobody_holds_a_class_what_crosses_is_the_closed_form(name):
    plan = plan_of(name)
    for sizes, up, down in played(plan, 3, classes=((0, 2), (0,), (2,))):
        cost = plan.variant.cost(sizes)
        assert some(cost.up) == some(up) and some(cost.down) == some(down)


@pytest.mark.parametrize("name", of_each_shape(METHODS))
def test_bytes_that_devices_count_are_the_closed_form(name, tmp_path):
    """Upload, as metered where it crosses. Costs are linear in prototypes, so one round may state them all."""
    ranks = {}

    def build(device, plan, data):
        half = plan.client_half(data.train, device)
        honest = half.run

        def run(ask):
            answer = honest(ask)
            ranks[device, half.number] = ranks_of(answer, half)
            return answer

        half.run = run
        return half

    run = simulation(tmp_path, name, build=build).run()
    for i, (device, agent) in enumerate(run.agents.items()):
        crossed = {k: n for (way, k), n in agent.link.meter.payload.items() if way == "up" and n}
        rows = crossed.get("labels", 0) // NUMBER_BYTES["labels"]
        expected = Counter()
        for number in range(1, POLICY.rounds + 1):
            sizes = Sizes(
                agent.run.job.half.model, held=3, examples=48 + 6 * i, clients=3,
                local_prototypes=rows if number == 1 else 0,
                first_round=number == 1, last_rounds="head" in crossed, ranks=ranks[device, number], public=PUBLIC,
            )  # fmt: skip
            expected.update(load(name).cost(sizes).up)
        of_kinds = {k: n for k, n in expected.items() if n and k in KINDS}  # others are metered as control
        assert crossed == {k: n * NUMBER_BYTES.get(k, 4) for k, n in of_kinds.items()}
