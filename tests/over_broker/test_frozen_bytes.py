"""No weight of a frozen backbone is sent: all bytes of a run are fewer than those of its backbone."""

from collections import Counter
from dataclasses import replace

import pytest
import torch.nn.functional as F

from protofleet.edge_client.data.shard import TensorSamples
from protofleet.methods.contract.first_weights import FirstWeights, weights_folder
from protofleet.methods.contract.plan import Network
from protofleet.methods.nets.weights_file import sha256_of_file, write_weights
from tests.over_broker.counting_proxy import CountingProxy
from tests.over_broker.test_counted_bytes import Proxied, closed_form, demand_all_bytes
from tests.support.federation_over_broker import DEVICES
from tests.support.small_federation import CLASSES, POLICY, shard

pytestmark = pytest.mark.slow
SIDE, FEATURES = 16, 360
NETWORK = Network("efficientnet_lite0", layer=4, pool=3)


class Frozen(Proxied):
    """A federation that trains only the head behind a frozen backbone, whose weights are in a file."""

    def __init__(self, folder, proxy, federation):
        super().__init__(folder, proxy, federation, "fedavg")
        plan = replace(self.plan, size=SIDE, network=NETWORK)
        trained = replace(plan, seed=77).model().features.state_dict()
        write_weights(folder / "w", {f"features.{name}": value for name, value in trained.items()})
        named = FirstWeights(f"w.safetensors@sha256:{sha256_of_file(folder / 'w')}")
        weights_folder().mkdir(parents=True)
        (folder / "w").rename(weights_folder() / f"{named.sha256}.safetensors")
        self.plan = replace(plan, init=named, freeze="backbone")

    def data_of(self, i):
        def large(part):
            return TensorSamples(F.interpolate(part.x, size=SIDE), part.y)

        small = shard(i)
        return replace(
            small, train=large(small.train), validation=large(small.validation), test=large(small.test)
        )


def test_all_bytes_of_a_run_are_fewer_than_those_of_its_frozen_backbone(
    tmp_path, broker, federation, monkeypatch
):
    monkeypatch.setenv("PROTOFLEET_DATA", str(tmp_path / "data"))
    with CountingProxy(broker.address) as proxy:
        run = Frozen(tmp_path, proxy, federation)
        try:
            run.run()
            demand_all_bytes(run, proxy)
        finally:
            run.close()
    found = {"up": Counter(), "down": Counter()}
    for record in run.recorder.records[:-1]:
        for way, kinds in record.payload.items():
            found[way].update(kinds)
    head = 4 * (FEATURES * CLASSES + CLASSES)
    sent = {"up": {"weights": POLICY.rounds * len(DEVICES) * head}, "down": {"weights": POLICY.rounds * head}}
    assert {way: dict(kinds) for way, kinds in found.items()} == closed_form(run) == sent
    backbone = sum(value.nbytes for value in run.plan.model().features.state_dict().values())
    assert sum(proxy.bytes.values()) < backbone
    assert run.plan.init.sha256.encode() in run.plan.encode()
