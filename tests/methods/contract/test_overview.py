"""Tests that the list of methods describes what the files of the methods do."""

import sys
from types import ModuleType

import pytest
import torch

from protofleet.cli.main import main
from protofleet.lab.contract.halves import bytes_by_kind
from protofleet.methods import fedavg
from protofleet.methods.contract.base import Member
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.overview import Reference, overview
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.public import PublicSet
from tests.methods.contract.test_cost import METHODS
from tests.methods.tiny import Shard, clients_of, play, server_of
from tests.support.few_methods import of_each_shape
from tools.pages import methods as page
from tools.pages.given_away import GIVEN_AWAY

# The methods whose messages docs/methods.md describes; for the other methods, the page states which arrays they send.
NEWER = {
    "apfl", "ditto", "fed3r", "fedadagrad", "fedadam", "fedavgm", "fedcof", "feddap", "feddyn", "fedgh", "fedgram",
    "fedheal", "fedncm", "fednova", "fedpcl", "fedper", "fedpft", "fedyogi", "ghofl", "scaffold", "tinyproto",
}  # fmt: skip


def test_the_page_of_all_methods_equals_the_generated_page():
    """If it is not, run `python -m tools.pages`."""
    assert page.PAGE.read_text(encoding="utf-8") == page.generate()


def test_the_page_states_for_newer_methods_what_an_update_reveals_and_to_whom():
    assert {*GIVEN_AWAY} == NEWER and {*GIVEN_AWAY} <= {*names()}
    to_all = {name for name, (what, _) in GIVEN_AWAY.items() if "every other device receives" in what}
    assert to_all == {"fedpcl", "feddap"}
    section = page.generate().partition("## What an answer gives away")[2].partition("\n## ")[0]
    careful = [name for name in names() if hasattr(load(name).Hyper(), "least_samples")]
    assert all(f"`{name}`" in section.partition("| method")[0] for name in careful)


@pytest.mark.parametrize("name", of_each_shape(names()))
def test_each_method_whose_device_keeps_a_state_describes_it_in_private(name):
    method = load(name)
    server, clients = (
        server_of(method, method.Hyper(), norm=True),
        clients_of(method, method.Hyper(), norm=True),
    )
    play(server, clients, 1)
    kept = {key.partition(".")[0] for client in clients.values() for key in client.state()}
    assert bool(kept) == bool(method.private), (
        f"{name} keeps {kept or 'nothing'}; say so in METHOD's `private`"
    )


def test_the_command_methods_prints_each_method_with_the_bytes_that_it_sends(capsys):
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : len(names()) + 1]] == names()
    fedproto = next(line for line in lines if line.startswith("fedproto"))
    rows, up, down = (
        10 * 512 * 4,
        2 * 10 * 8,
        10 * 8,
    )  # float32 prototypes; int64 labels, and counts on the way up
    assert fedproto.split()[1:5] == ["personal", "mixed", f"{rows + up:,}", f"{rows + down:,}"]


def listed(name):
    """Return the plan of the run whose numbers the list shows."""
    return Plan(name, 10, 1, size=32, network=Reference().network)


@pytest.mark.parametrize("name", METHODS)
def test_the_bytes_in_the_list_are_computed_with_the_network_of_a_device(name):
    plan = listed(name)
    nobodys = Shard(torch.zeros(0, 3, 32, 32), torch.zeros(0, dtype=torch.int64))
    model = plan.client_half(nobodys, "a").model
    rows = 3 * 10
    sizes = Sizes(model, 10, 240, 6, rows, rows, public=PublicSet().batches)
    assert overview(name).cost == plan.variant.cost(sizes)


def first_weights(plan):
    server = plan.server_half()
    server.begin(1, [Member("a", 240, (24,) * 10)])
    return bytes_by_kind(next(server.round()).payload)["weights"]


def test_the_downloaded_weights_in_the_list_equal_those_of_a_first_broadcast():
    told = {name: overview(name).cost.bytes_down.get("weights") for name in METHODS}
    sent = {name: first_weights(listed(name)) for name, weights in told.items() if weights}
    assert sent == {name: weights for name, weights in told.items() if weights}
    assert sent["fedsr"] > sent["fedavg"] > sent["fednh"], (
        "the network of the half counts, not that of the plan"
    )


def test_a_method_whose_docstring_has_another_form_is_refused_with_the_needed_form(monkeypatch):
    other = ModuleType("protofleet.methods.fedavg", "Averages models.")
    other.METHOD = fedavg.METHOD
    monkeypatch.setitem(sys.modules, "protofleet.methods.fedavg", other)
    with pytest.raises(
        ValueError, match=r"fedavg.py begins with 'Averages models.', but it must begin with 'Name \(authors"
    ):
        overview("fedavg")
