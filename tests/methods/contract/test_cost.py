"""Tests that every method sends the numbers that its closed form states, between its halves and over the wire."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from protofleet import methods
from protofleet.lab.contract.halves import arrays_are_declared, cost_is_what_crosses, ranks_of
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.public import PublicSet
from tests.support.few_methods import FEW_STEPS, SHAPES, few, of_each_shape, with_own_arrays
from tests.support.small_federation import POLICY, simulation

HOME = Path(methods.__file__).parent
METHODS = [name for name in names() if (HOME / f"{name}.py").exists()]  # Without the shapes that tests add.
PUBLIC = PublicSet().batches
LOCAL = {"epochs": 1, "batch": 8, "server_epochs": 1, "init_steps": 10}


def plan_of(name, **hyper):
    known = load(name).Hyper.__dataclass_fields__
    return Plan(name, 3, 3, 7, 8, Network("mlp"), {**{k: v for k, v in LOCAL.items() if k in known}, **hyper})


IN_FACTORS = {"travel": "parameters", "energy_first": 0.5, "energy_last": 0.5}  # Factors in both directions.


OTHER_SETTINGS = [  # Settings that change what is sent.
    ("fedkd", IN_FACTORS),
    ("fednh", {"fixed_scale": True}),
    ("fednh", {"fixed_scale": True, "final_fit": True}),
    ("fcclplus", {"average": False}),
    ("fedgen", {"hidden": 16, "noise": 5}),
    ("fedgen", {"hidden": 16, "noise": 5, "generator": "untrained"}),
    ("fed3r", {"intercept": False}),
    ("fedcof", {"means_per_class": 3}),
    ("fedgram", {"rank": 2}),
    ("fedgram", {"form": "gram"}),
    ("fedpft", {"covariance": "diag", "parts": 2}),
    ("fedpft", {"covariance": "full"}),
    ("ghofl", {"head": "nb"}),
    ("ghofl", {"head": "qda"}),
    ("adcol", {"clients": 5}),
    ("adcol", {"clients": 5, "average_models": True}),
    ("feddyn", {"alpha_scale": "size"}),
    ("feddyn", {"report": "mean"}),
    ("scaffold", {"send_controls": True}),
]


@pytest.mark.parametrize("name, hyper", few([*((name, {}) for name in METHODS), *OTHER_SETTINGS], 2))
def test_the_sent_bytes_of_each_kind_equal_the_closed_form(name, hyper):
    assert load(name).cost, f"{name} does not say what it costs"
    cost_is_what_crosses(plan_of(name, **hyper))


@pytest.mark.parametrize(
    "name, hyper",
    [
        (name, hyper) if name in SHAPES and not hyper else pytest.param(name, hyper, marks=pytest.mark.slow)
        for name, hyper in [*((name, {}) for name in METHODS), *OTHER_SETTINGS]
    ],
)
def test_the_sent_bytes_with_a_frozen_backbone_equal_the_closed_form(name, hyper):
    cost_is_what_crosses(replace(plan_of(name, **hyper), freeze="backbone"))


# The contract suite tests the methods without settings.
@pytest.mark.parametrize("name, hyper", OTHER_SETTINGS)
def test_a_variant_declares_exactly_the_arrays_that_it_sends(name, hyper):
    arrays_are_declared(plan_of(name, **hyper))


@pytest.mark.parametrize("name", of_each_shape(with_own_arrays(METHODS)))
def test_the_closed_form_includes_the_statistics_of_batch_norm(name):
    cost_is_what_crosses(replace(plan_of(name), network=Network("cnn_bn", feature_size=8)), rounds=2)


@pytest.mark.parametrize("name", of_each_shape(METHODS))
def test_the_sent_bytes_equal_the_closed_form_when_no_device_holds_a_class(name):
    cost_is_what_crosses(plan_of(name), classes=((0, 2), (0,), (2,)))


@pytest.mark.parametrize("name", of_each_shape(with_own_arrays(METHODS)))
def test_the_bytes_that_devices_count_equal_the_closed_form(name, tmp_path):
    """The meter counts the upload where it is sent. Costs are linear in prototypes, so one round covers all."""
    ranks = {}

    def build(device, plan, data):
        half = plan.client_half(data.train, device, validation=data.validation)
        honest = half.run

        def run(ask):
            answer = honest(ask)
            ranks[device, half.number] = ranks_of(answer, half)
            return answer

        half.run = run
        return half

    run = simulation(tmp_path, name, hyper=FEW_STEPS, build=build).run()
    for i, (device, agent) in enumerate(run.agents.items()):
        crossed = {k: n for (way, k), n in agent.link.meter.payload.items() if way == "up" and n}
        rows = crossed.get("labels", 0) // 8
        expected = Counter()
        for number in range(1, POLICY.rounds + 1):
            if (device, number) not in ranks:  # The device was not asked, because its answer is kept.
                continue
            sizes = Sizes(
                agent.run.job.half.model, held=3, examples=48 + 6 * i, clients=3,
                local_prototypes=rows if number == 1 else 0,
                first_round=number == 1, last_rounds="head" in crossed, ranks=ranks[device, number], public=PUBLIC,
            )  # fmt: skip
            expected.update(load(name).cost(sizes).bytes_up)
        assert crossed == expected
