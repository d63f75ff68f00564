"""Tests that the file of docs/adding-a-method.md is a method: in halves, over the wire and in an installed wheel."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet import methods
from protofleet.deploy.fleet.software import build_wheel
from protofleet.methods.contract.catalog import load
from protofleet.methods.contract.cost import Sizes
from tests.lab.local.test_run import furnished
from tests.methods.plain import DATA, LOCAL, PRESENT, fit, network, order_of, played
from tests.methods.tiny import answer, clients_of, floats, member, server_of
from tests.support.small_federation import assert_same, simulation

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"
(CODE,) = re.findall(r"^```python fedexp\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SETTINGS = {**LOCAL, "epsilon": 1e-4}


@pytest.fixture(scope="module")
def fedexp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("more")
    (folder / "fedexp.py").write_text(CODE)
    methods.__path__.append(str(folder))
    load("fedexp")
    yield sys.modules["protofleet.methods.fedexp"]
    methods.__path__.remove(str(folder))
    del sys.modules["protofleet.methods.fedexp"]
    load.cache_clear()


def test_the_file_of_the_page_has_fewer_than_eighty_lines():
    assert len(CODE.splitlines()) < 80


def loop(hyper):
    """Return the last two models of the rounds, and the steps of the server."""
    before, now, steps = None, network().state_dict(), []
    learned = [name for name, _ in network().named_parameters()]
    for number, present in enumerate(PRESENT, 1):
        came = {name: trained(now, name, number, hyper) for name in present}
        mean = {k: sum(came[n][k] for n in present) / len(present) for k in now}
        squares = [sum(float(((came[n][k] - now[k]) ** 2).sum()) for k in learned) for n in present]
        square = sum(float(((mean[k] - now[k]) ** 2).sum()) for k in learned)
        eta = sum(squares) / (2 * len(present) * (square + hyper.epsilon))
        steps.append(min(max(eta, 1.0), hyper.most))
        moved = {k: now[k] + steps[-1] * (mean[k] - now[k]) for k in learned}
        whole = {k: came[present[0]][k] for k, w in now.items() if not w.is_floating_point()}
        before, now = now, {**mean, **moved, **whole}
    return before, now, steps


def trained(start, name, number, hyper):
    model = network()
    model.load_state_dict(start)
    parameters, order = list(model.parameters()), order_of(name, number)
    fit(model, parameters, DATA[name], hyper.epochs, hyper, order, lambda x, y: F.cross_entropy(model(x), y))
    return model.state_dict()


@pytest.mark.parametrize("most", [10.0, 1.05])
def test_four_rounds_equal_those_of_a_plain_loop(fedexp, most):
    hyper = fedexp.Hyper(**SETTINGS, most=most)
    server, _ = played(fedexp, hyper)
    before, now, steps = loop(hyper)
    assert min(steps) == 1.0 and (max(steps) == most) == (most == 1.05)
    for key, value in now.items():
        assert_close(server.state()[f"weights.{key}"], value, rtol=1e-8, atol=1e-10)
        result = (value + before[key]) / 2 if value.is_floating_point() else value
        assert_close(server.payload()[f"weights.{key}"], result, rtol=1e-8, atol=1e-10)


def test_an_impossible_length_in_an_update_is_refused(fedexp):
    hyper = fedexp.Hyper(**SETTINGS)
    server, clients = server_of(fedexp.METHOD, hyper), clients_of(fedexp.METHOD, hyper)
    server.begin(1, [member(name, client) for name, client in clients.items()])
    ask = next(server.round())
    sent = dict(answer(clients["device-0"], ask, 1))
    for length in (1e9, -1.0, float("nan")):
        assert ask.problem_with({**sent, "length": torch.tensor([length], dtype=torch.float64)}) is not None
    assert floats(sent) == fedexp.cost(Sizes(clients["device-0"].model, held=3)).up


def test_the_method_learns_through_the_wire_and_a_restart_changes_no_bit(fedexp, tmp_path):
    unbroken, broken = simulation(tmp_path / "a", "fedexp").run(), simulation(tmp_path / "b", "fedexp")
    broken.clock.call_at(2.0, broken.boot_coordinator)
    broken.run()
    assert broken.boots == 2
    assert_same(unbroken, broken)
    for agent in unbroken.agents.values():
        assert agent.state.saved.answers[-1].metrics["accuracy.test.global"] > 2 / 3


@pytest.mark.slow
def test_an_installed_protofleet_runs_the_added_file_over_a_broker(tmp_path):
    site = tmp_path / "site"
    build_wheel(tmp_path)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    (site / "protofleet" / "methods" / "fedexp.py").write_text(CODE)
    place = furnished(tmp_path / "place")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "protofleet"]

    def said(*words):
        done = subprocess.run(
            [*command, *words], cwd=place, env=environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "fedexp" in said("methods") and "FedExP (Jhunjhunwala et al." in said("methods", "fedexp")
    said("run", "small.toml", "--set", "method.name='fedexp'")
    summary = json.loads((place / "runs" / "small" / "summary.json").read_text())
    assert summary["method"] == "fedexp"
