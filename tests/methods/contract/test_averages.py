"""Tests that averaged phases are declared correctly: one reply with the mean gives the same state as all replies."""

from dataclasses import fields, replace

import pytest
import torch

import protofleet
from protofleet.lab.contract import averages as checks
from protofleet.lab.contract.worlds import ContractError, Subject
from protofleet.methods import fedavg, fedpall, fedproto
from protofleet.methods.contract import catalog
from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.base import Method
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.parts.weights import weight_wants
from tests.support.few_methods import FEW_STEPS, few_steps, of_each_shape

DECLARING = [name for name in names() if load(name).averaged]
# Settings that change how a method averages.
OTHER_SETTINGS = [
    ("fedproto", {"aggregation": "weighted"}),
    ("fedproto", {"average_models": True}),
    ("fedproto", {"average_models": True, "aggregation": "weighted"}),
    ("fedsa", {"aggregation": "unweighted"}),
    ("fednh", {"fixed_scale": True}),
    ("fedhp", {"aggregation": "counts"}),
]


def test_methods_that_send_weights_or_prototypes_declare_averaged_phases():
    assert {"fedavg", "fedprox", "fedlsa", "fedproto", "fedsa", "fedpall", "fednh", "fedhp"} <= {*DECLARING}


@pytest.mark.parametrize("method", of_each_shape(DECLARING))
def test_one_reply_with_the_mean_gives_the_same_state_as_all_replies(method):
    checks.one_mean_stands_for_all_replies(few_steps(method))


@pytest.mark.slow
@pytest.mark.parametrize("method, hyper", OTHER_SETTINGS)
def test_one_reply_with_the_mean_gives_the_same_state_under_other_settings(method, hyper):
    subject = Subject(method, hyper={**FEW_STEPS, **hyper})
    assert subject.plan().variant.averaged
    checks.one_mean_stands_for_all_replies(subject)


def test_the_check_finds_a_wrong_weighting(monkeypatch):
    wrong = replace(fedproto.METHOD, averaged={"train": Averaged(rows="counts")}, variant=None)
    with pytest.raises(ContractError, match="prototypes is different if one reply has the mean"):
        checked(wrong, monkeypatch)


def test_the_check_finds_an_averaged_phase_that_also_requests_other_arrays(monkeypatch):
    class More(fedavg.Server):
        def round(self):
            wants = {**weight_wants(self.model), "steps": TensorSpec((1,))}
            yield protofleet.Ask("train", self.payload(), wants)

    class Client(fedavg.Client):
        def run(self, ask):
            return {**super().run(ask), "steps": torch.ones(1)}

    more = replace(fedavg.METHOD, Server=More, Client=Client, arrays=("weights", "steps"), variant=None)
    with pytest.raises(ContractError, match="but the phase also requests steps"):
        checked(more, monkeypatch)


def test_the_check_finds_an_averaged_phase_that_no_round_has(monkeypatch):
    wrong = replace(fedavg.METHOD, averaged={"trian": Averaged(("weights",))}, variant=None)
    with pytest.raises(ContractError, match="no round has this phase"):
        checked(wrong, monkeypatch)


@pytest.mark.parametrize("method", ["fedsa", "fedhp"])
def test_no_phase_is_averaged_with_the_aggregation_of_the_paper(method):
    assert not Subject(method, hyper={"aggregation": "paper"}).plan().variant.averaged


def test_only_the_first_phase_of_fedpall_is_averaged():
    assert {*fedpall.METHOD.averaged} == {"train"}


def test_uncovered_returns_the_arrays_that_a_mean_does_not_contain():
    both = Averaged(("weights",), rows="counts")
    wanted = ["weights.a.b", "prototypes", "labels", "counts"]
    assert both.uncovered(wanted) == []
    assert both.uncovered([*wanted, "lacks", "head.bias"]) == ["head.bias", "lacks"]
    assert Averaged(("weights",)).uncovered(wanted) == ["counts", "labels", "prototypes"]
    table = Averaged(rows="shares", table=True, single=("lacks",))
    assert table.uncovered(["prototypes", "lacks", "labels"]) == ["labels"]


@pytest.mark.parametrize("make, words", [
    (Averaged, "must have arrays or rows"),
    (lambda: Averaged("weights"), "it must be a tuple of kinds"),
    (lambda: Averaged(("weights",), by="counts"), "by is 'counts', it must be one of examples, devices"),
    (lambda: Averaged(rows="examples"), "rows is 'examples', it must be None or one of devices, counts, shares"),
    (lambda: Averaged(("prototypes",), rows="devices"), "prototypes is in arrays, but rows"),
    (lambda: Averaged(("weights",), table=True), "table is True, but rows is None"),
    (lambda: of({"train": ("weights",)}), "must be a phase and an Averaged"),
    (lambda: of(["train"]), "averaged must be a table"),
    (lambda: of({"train": Averaged(rows="devices")}), "prototypes is not in arrays="),
])  # fmt: skip
def test_a_wrong_declaration_is_refused_when_the_method_is_defined(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def of(averaged):
    return Method("none", fedavg.Hyper, fedavg.Server, fedavg.Client, arrays=("weights",), averaged=averaged)


def checked(method, monkeypatch):
    """Check a changed method under the name of the method that it replaces."""
    name = method.Hyper.__module__.rpartition(".")[2]
    found = catalog.load(name)
    for one in fields(Method):
        monkeypatch.setitem(found.__dict__, one.name, getattr(method, one.name))
    checks.one_mean_stands_for_all_replies(few_steps(name))
