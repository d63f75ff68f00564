"""The ledger of releases in the spool."""

from dataclasses import replace

import pytest
import torch

from protofleet.coordinator.spool.releases import ReleaseLedger, numbers_in, released_numbers
from protofleet.coordinator.spool.spool import Accepted, Spool
from protofleet.methods.contract.plan import Network
from protofleet.methods.contract.wants import TensorSpec
from protofleet.protocol.privacy.ledger import spent_epsilon
from protofleet.protocol.settings.dp import DpSettings
from tests.support.small_federation import plan

WANTS = {"weights.a": TensorSpec((4, 3)), "weights.steps": TensorSpec((), "int64")}
MADE = replace(plan("fedavg", 3), network=Network("mlp", 8), dp=DpSettings("device", 8.0, 1e-5, 1.0, 3))


def opened(folder):
    spool = Spool(folder)
    spool.start_run("run", "{}", 1)
    return spool, ReleaseLedger(spool.index, MADE, "run")


def accept(spool, ledger, name, round=1):
    spool.accept(round, "train", Accepted("device-1", b"base", name, 10, {}))
    ledger.accepted("device-1", round, "train", name, WANTS)


def test_a_release_is_durable_with_the_acceptance_and_not_before(tmp_path):
    spool, ledger = opened(tmp_path)
    accept(spool, ledger, b"one")
    spool.close()  # The process ends before the commit.
    spool, ledger = opened(tmp_path)
    assert ledger.releases("device-1") == []
    accept(spool, ledger, b"one")
    spool.commit()
    spool.close()
    assert len(opened(tmp_path)[1].releases("device-1")) == 1


def test_an_update_that_is_accepted_twice_is_one_release_and_another_update_is_a_second(tmp_path):
    spool, ledger = opened(tmp_path)
    for name in (b"one", b"one", b"two"):
        accept(spool, ledger, name)
    spool.commit()
    assert [one.attempt for one in ledger.releases("device-1")] == [1, 2]
    spool.close()
    again = opened(tmp_path)[1]
    assert again.releases("device-1") == ledger.releases("device-1")
    assert again.epsilon == ledger.epsilon == {"device-1": spent_epsilon(ledger.releases("device-1"), 1e-5)}


def test_a_later_checkpoint_does_not_delete_releases(tmp_path):
    spool, ledger = opened(tmp_path)
    accept(spool, ledger, b"one")
    for round in range(1, 6):
        spool.save(round, 0, ["device-1"], {}, {"x": torch.ones(round).numpy()})
    spool.close()
    assert len(opened(tmp_path)[1].releases("device-1")) == 1


def test_integer_arrays_are_not_counted():
    assert numbers_in(WANTS) == 12


@pytest.mark.parametrize("method, unit", [("fedavg", "device"), ("fedncm", "sample")])
def test_the_count_of_released_numbers_is_known_before_the_run(method, unit):
    made = replace(MADE, method=method, hyper={}, dp=replace(MADE.dp, unit=unit))
    with torch.device("meta"):
        model = made.model()
    weights = sum(value.numel() for value in model.state_dict().values() if value.is_floating_point())
    assert released_numbers(made) == (
        weights if unit == "device" else made.classes * (model.embedding_size + 1)
    )
