"""Tests that the file of docs/adding-a-method.md is a method: in halves, over the wire and in an installed wheel."""

import json
import math
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
from protofleet.methods.parts.local import LocalHyper
from tests.lab.local.test_run import furnished
from tests.methods.plain import DATA, LOCAL, PRESENT, fit, network, order_of, played
from tests.methods.tiny import answer, clients_of, floats, server_of
from tests.support.small_federation import assert_same, simulation

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"
(CODE,) = re.findall(r"^```python fednova\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
HYPER = LocalHyper(**LOCAL)


@pytest.fixture(scope="module")
def fednova(tmp_path_factory):
    folder = tmp_path_factory.mktemp("more")
    (folder / "fednova.py").write_text(CODE)
    methods.__path__.append(str(folder))
    load("fednova")
    yield sys.modules["protofleet.methods.fednova"]
    methods.__path__.remove(str(folder))
    del sys.modules["protofleet.methods.fednova"]


def test_the_file_has_fewer_than_sixty_lines():
    assert len(CODE.splitlines()) < 60


def test_its_rounds_are_those_of_a_plain_loop(fednova):
    server, _ = played(fednova, HYPER)
    model = network()
    for number, present in enumerate(PRESENT, 1):
        start = {k: v.clone() for k, v in model.state_dict().items()}
        total, came = sum(len(DATA[name].y) for name in present), {}
        for name in present:
            model.load_state_dict(start)
            fit(
                model, list(model.parameters()), DATA[name], HYPER.epochs, HYPER, order_of(name, number),
                lambda x, y: F.cross_entropy(model(x), y),
            )  # fmt: skip
            came[name] = {k: v.clone() for k, v in model.state_dict().items()}
        p = {name: len(DATA[name].y) / total for name in present}
        a = {name: counted(len(DATA[name].y)) for name in present}
        learned = {key for key, _ in model.named_parameters()}
        for key, w in start.items():
            change = sum(p[n] * (w - came[n][key]) / a[n] for n in present) * sum(
                p[n] * a[n] for n in present
            )
            share = {n: p[n] / a[n] / sum(p[m] / a[m] for m in present) for n in present}
            if key in learned:
                start[key] = w - change
            elif w.is_floating_point():
                start[key] = sum(share[n] * came[n][key] for n in present)
            else:
                start[key] = came[present[0]][key]
        model.load_state_dict(start)
    for key, value in model.state_dict().items():
        assert_close(server.payload()[f"weights.{key}"], value, rtol=1e-8, atol=1e-10)


def counted(examples):
    """Return the sum over all gradients of the weight that momentum gives to each one in these steps."""
    steps = HYPER.epochs * math.ceil(examples / HYPER.batch)
    return sum(sum(HYPER.momentum**j for j in range(steps - i)) for i in range(steps))


def test_a_device_that_says_a_billion_steps_is_refused(fednova):
    server, clients = server_of(fednova.METHOD, HYPER), clients_of(fednova.METHOD, HYPER)
    server.begin(1, [type("M", (), {"examples": len(c.data.y)})() for c in clients.values()])
    ask = next(server.round())
    sent = dict(answer(clients["device-0"], ask, 1))
    assert ask.problem_with({**sent, "steps": torch.tensor([1e9], dtype=torch.float64)}) is not None
    assert floats(sent) == fednova.cost(Sizes(clients["device-0"].model, held=3)).up


def test_it_learns_through_the_wire_and_a_kill_changes_no_bit(fednova, tmp_path):
    unbroken, broken = simulation(tmp_path / "a", "fednova").run(), simulation(tmp_path / "b", "fednova")
    broken.clock.call_at(2.0, broken.boot_coordinator)
    broken.run()
    assert broken.boots == 2
    assert_same(unbroken, broken)
    for agent in unbroken.agents.values():
        assert agent.state.saved.answers[-1].metrics["accuracy.test.global"] > 2 / 3


@pytest.mark.slow
def test_an_installed_protofleet_with_the_file_put_in_runs_it_over_a_broker(tmp_path):
    site = tmp_path / "site"
    build_wheel(tmp_path)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    (site / "protofleet" / "methods" / "fednova.py").write_text(CODE)
    place = furnished(tmp_path / "place")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "protofleet"]

    def said(*words):
        done = subprocess.run(
            [*command, *words], cwd=place, env=environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "fednova" in said("methods") and "FedNova (Wang et al." in said("methods", "fednova")
    said("run", "small.toml", "--set", "method.name='fednova'")
    summary = json.loads((place / "runs" / "small" / "summary.json").read_text())
    assert summary["method"] == "fednova"
