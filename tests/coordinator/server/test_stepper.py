"""Between two asks, a server half's result of a round is tried out before any device builds upon it."""

import pytest

from protofleet.coordinator.server.stepper import Stepper
from protofleet.methods.contract.plan import Network, Plan

KINDS = {"vectors": ((12,), "mlp"), "series": ((2, 16), "cnn1d"), "images": ((3, 8, 16), "cnn_bn")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_model_is_tried_out_on_samples_of_the_runs_own_shape(kind):
    shape, network = KINDS[kind]
    plan = Plan("fedavg", 2, 1, network=Network(network), shape=shape)
    stepper = Stepper(plan, 1, outlier=0.0, confusion=0, arrays=dict)
    assert stepper.fault() == ""
    stepper.server.model.head.weight.data.fill_(float("nan"))
    assert "not finite" in stepper.fault()
