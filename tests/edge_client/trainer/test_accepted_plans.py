"""A device that changes between two runs checks each plan against its limits only once."""

from dataclasses import replace

import pytest

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.limits import DeviceLimits, HalfBuilder
from protofleet.edge_client.trainer.local import LocalTrainer
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.settings.reader import SettingsError


def test_an_accepted_plan_is_checked_once_and_a_refused_plan_each_time(tmp_path, monkeypatch):
    data = DataSettings("digits", domain="mnist", samples=20, test_samples=5, size=8)
    limits = DeviceLimits(epochs=2)
    trainer = LocalTrainer(DeviceSettings("d", folder=str(tmp_path), data=data, threads=1, limits=limits))
    checked, build = [], HalfBuilder.build
    monkeypatch.setattr(HalfBuilder, "build", lambda self, plan: (checked.append(plan), build(self, plan))[1])
    red = Plan("fedavg", 10, 1, size=8, network=Network("mlp"), hyper={"epochs": 1})
    blue, greedy = replace(red, seed=1), replace(red, hyper={"epochs": 3})
    for plan in (red, blue, red, blue):
        trainer.start(plan)
    for _ in range(2):
        with pytest.raises(SettingsError, match="3 epochs"):
            trainer.start(greedy)
    assert checked == [red, blue, greedy, greedy]
