"""Tests of the counts that `python -m tests.walk` prints."""

import sys

from tests.walk import walked


def test_the_walk_enters_the_method_the_agent_and_both_ends_of_the_link(tmp_path):
    walk = walked("fedavg")
    assert sys.getprofile() is None
    on_the_way = [
        "methods/fedavg.py",
        "edge_client/agent.py",
        "protocol/link/device.py",
        "protocol/link/coordinator.py",
    ]
    assert all(walk.entered[name] for name in on_the_way)
    assert not [name for name in walk.entered if "simulation" in name or name.startswith("tests")]
    assert all(one != other for one, other in walk.hops) and sum(walk.hops.values()) == walk.entered.total()
    assert walk.hops["the network", "coordinator/service.py"], "an answer arrives as an item"
