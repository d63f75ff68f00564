"""Between two tasks, the result of a server step is tried before it is sent to any device."""

import pytest
import torch

from protofleet.coordinator.round.events import Recovered
from protofleet.coordinator.server.culprits import FailedRound
from protofleet.coordinator.server.stepper import Stepper
from protofleet.coordinator.spool.spool import Accepted
from protofleet.methods.contract.base import Member
from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.contract.plan import Network, Plan

KINDS = {"vectors": ((12,), "mlp"), "series": ((2, 16), "cnn1d"), "images": ((3, 8, 16), "cnn_bn")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_model_is_tried_on_samples_of_the_shape_of_the_run(kind):
    shape, network = KINDS[kind]
    plan = Plan("fedavg", 2, 1, network=Network(network), shape=shape)
    stepper = Stepper(plan, outlier=0.0, confusion=0, arrays=dict)
    assert stepper.fault() == ""
    stepper.server.model.head.weight.data.fill_(float("nan"))
    assert "not finite" in stepper.fault()


def keeper():
    """Return a stepper whose server half keeps answers; each device sends one mean of the class with its number."""

    def arrays(answer):
        sent = {"prototypes": torch.ones(1, 8), "labels": torch.tensor([int(answer.device)])}
        return LazyPayload(to_numpy({**sent, "counts": torch.tensor([20])}))

    plan = Plan("fedncm", 3, 3, network=Network("mlp", 8), shape=(12,))
    return Stepper(plan, outlier=0.0, confusion=0, arrays=arrays, weight_cap=3.0)


def answers_of(*devices):
    return {device: Accepted(device, b"", b"", 20, {}) for device in devices}


def test_a_removed_device_is_forgotten_at_the_start_and_at_the_end_of_a_round():
    stepper, members = keeper(), [Member(name, 20) for name in "012"]
    stepper.begin(1, members, enrolled="012")
    assert stepper.send(answers_of(*"012"), enrolled="01") is None
    assert (sorted(stepper.server.answered()), stepper.forgotten) == (["0", "1"], ("2",))
    stepper.begin(2, members, enrolled="1")
    assert (sorted(stepper.server.answered()), stepper.forgotten) == (["1"], ("0",))
    assert stepper.server.payload()["labels"].tolist() == [1]


def test_the_search_for_a_culprit_forgets_the_devices_that_the_round_has_forgotten():
    stepper, members = keeper(), [Member(name, 20) for name in "012"]
    stepper.begin(1, members)
    stepper.send(answers_of(*"01"))
    state = to_numpy(stepper.server.state())
    closed, again = {"describe": answers_of("2")}, keeper()
    failed = FailedRound(Recovered(2, 0, ("2",)), state, members[2:], closed, None, enrolled="02")
    assert failed.works(again, "describe", frozenset("2"))
    assert sorted(again.server.answered()) == ["0", "2"]
