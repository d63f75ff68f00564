"""A user's script passes `mypy --strict`, because public names have the project's own types."""

import subprocess
import sys

import pytest

from tests.rooms import ROOT

SCRIPT = """
from dataclasses import dataclass

import protofleet
from protofleet.methods import fedavg
from protofleet.testing import Simulated, simulate
from typing_extensions import assert_type

result = protofleet.run({"base": "first.toml", "rounds": 3}, seed=1, progress=lambda record: print(record["round"]))
assert_type(result, protofleet.Result)
assert_type(result.accuracy, float)
assert_type(protofleet.compare([result, "runs/other"]).rows[0].bytes.tensors, int)
assert_type(protofleet.load_model("runs/first").predict(["a.png"]), list[str])


@dataclass(frozen=True)
class Hyper(protofleet.LocalHyper):
    beta: float = 0.5


class Server(fedavg.Server):
    def round(self) -> protofleet.Round:
        wants = protofleet.weight_wants(self.model)
        replies = yield protofleet.Ask("train", self.payload(), wants)
        protofleet.load_weights(self.model, protofleet.weighted_mean(replies, wants))


METHOD = protofleet.Method("mine", Hyper, Server, fedavg.Client)
data: dict[str, protofleet.Data] = {}
assert_type(simulate(METHOD, data, settings={"beta": 0.1}), Simulated)
try:
    protofleet.run("other.toml")
except (protofleet.SettingsError, protofleet.RunError, protofleet.DivergedError) as error:
    print(error)
"""


@pytest.mark.slow
def test_mypy_strict_accepts_a_correct_script_and_finds_each_mistake(tmp_path):
    subprocess.run(["make", "-s", ".links"], cwd=ROOT, check=True, timeout=60)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "wrong.py").write_text(
        'import protofleet\n\nprotofleet.run(7).acuracy\nprotofleet.nothing("x")\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", tmp_path / "script.py", tmp_path / "wrong.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    found = [line.partition(": error: ")[::2] for line in done.stdout.splitlines() if ": error: " in line]
    assert [place.rsplit("/")[-1] for place, _ in found] == ["wrong.py:3", "wrong.py:3", "wrong.py:4"], (
        done.stdout
    )
    words = "".join(text for _, text in found)
    assert all(one in words for one in ('incompatible type "int"', '"acuracy"', '"nothing"')), words
