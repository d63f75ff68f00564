"""Tests that arrays that a method does not declare are refused by their names when they are sent."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import protofleet
from protofleet.lab.contract.halves import arrays_are_declared
from protofleet.lab.contract.worlds import ContractError, Subject
from protofleet.lab.local.own_plugins import own_plugins
from protofleet.methods import fedavg
from protofleet.methods.plugins.file import from_file
from protofleet.testing import simulate
from tests.lab.api.test_simulate import DATA
from tests.support.small_federation import POLICY, plan, simulation

VARIATES = Path(__file__).parents[1] / "plugged" / "variates.py"
QUICK = {"epochs": 1}
LAZY = """from protofleet import Method
from protofleet.methods import fedavg
class Client(fedavg.Client):
    def run(self, ask):
        return super().run(ask)
METHOD = Method("none", fedavg.Hyper, fedavg.Server, Client, cost=fedavg.cost{more})
"""


def method(server=fedavg.Server, client=fedavg.Client, arrays=("weights",)):
    return protofleet.Method("none", fedavg.Hyper, server, client, arrays=arrays)


class Sends(fedavg.Client):
    def run(self, ask):
        return {**super().run(ask), "secret.a": torch.zeros(2)}


class Asks(fedavg.Server):
    def round(self):
        yield protofleet.Ask("train", {**self.payload(), "logits": torch.zeros(3)})


class Wants(fedavg.Server):
    def round(self):
        yield protofleet.Ask("train", self.payload(), {"logits": protofleet.TensorSpec((3,))})


@pytest.mark.parametrize("made, name, call", [
    (method(client=Sends), "secret", "run"), (method(Asks), "logits", "round"), (method(Wants), "logits", "round"),
])  # fmt: skip
def test_an_undeclared_array_is_refused_by_its_name_when_it_is_sent(made, name, call):
    words = rf"test_declared.py:\d+: {call}\(\) sends the array '{name}', which METHOD does not declare; "
    with pytest.raises(protofleet.RunError, match=words) as raised:
        simulate(made, DATA, rounds=1, settings=QUICK)
    assert str(raised.value).endswith(f'write Method(..., arrays=("{name}", "weights"))')


@pytest.mark.parametrize("arrays, words", [
    ("weights", "must be a tuple of names"), (("weights", "control"), "is a name that the framework uses"),
    (("a.b",), "before its first dot"),
    (tuple(f"k{i}" for i in range(17)), "17 kinds of arrays, but the limit is 16"),
])  # fmt: skip
def test_a_wrong_declaration_of_arrays_is_refused_when_the_method_is_defined(arrays, words):
    with pytest.raises((TypeError, ValueError), match=words):
        method(arrays=arrays)


def subject(folder, text):
    (folder / "lazy.py").write_text(text)
    found = own_plugins([str(folder / "lazy.py")], {})
    return Subject("lazy", found.hashes[0], allowed=found.allowed())


def test_a_plug_in_that_declares_no_arrays_runs_and_its_bytes_have_the_kind_other(tmp_path):
    lazy = subject(tmp_path, LAZY.format(more=""))
    run = simulation(tmp_path / "run", lazy.method, plugin=lazy.plugin, plugins=lazy.allowed).run()
    same = simulation(tmp_path / "same", "fedavg").run()
    payload, wanted = run.service.run.link.meter.payload, same.service.run.link.meter.payload
    assert payload == {(way, "other"): n for (way, _), n in wanted.items()}
    with pytest.raises(
        ContractError, match=r'not declare its arrays; write Method\(.*, arrays=\("weights",\)\)'
    ):
        arrays_are_declared(lazy.plan())


def test_an_array_that_is_declared_but_never_sent_is_named(tmp_path):
    idle = subject(tmp_path, LAZY.format(more=', arrays=("weights", "ghosts")'))
    with pytest.raises(ContractError, match="METHOD declares ghosts, and no round of 3 sends or asks for it"):
        arrays_are_declared(idle.plan())


@pytest.mark.slow
def test_a_plug_in_can_divide_by_the_fleet_size_also_after_a_restart(tmp_path):
    """It also holds after a restart of the coordinator: N is the number of devices enrolled when the run began."""
    source = from_file(VARIATES, allowed=None)[0]
    found = own_plugins([str(VARIATES)], {})
    policy = replace(POLICY, quorum=1, cohort=1, rounds=3)
    runs = []
    for name in ("unbroken", "broken"):
        run = simulation(
            tmp_path / name, "variates", policy=policy, plugin=source.sha256, plugins=found.allowed(),
            hyper={"epochs": 1},
        )  # fmt: skip
        if name == "broken":
            run.clock.call_at(2.0, run.boot_coordinator)
        runs.append(run.run())
    halves = [run.service.run.server_runner.server for run in runs]
    assert [half.fleet for half in halves] == [3, 3] and runs[1].boots == 2
    own = [agent.run.job.half for agent in runs[0].agents.values()]
    for name, c in halves[
        0
    ].c.items():  # c is the mean of all control variates of devices, also of those that are still zero.
        torch.testing.assert_close(c, sum(half.own[name] for half in own) / 3)
        assert torch.equal(c, halves[1].c[name])
    assert plan("fedavg").variant.arrays == ("weights",)
