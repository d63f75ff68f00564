"""Tests that do what docs/plug-ins.md shows: its files make a run, and all commands for runs accept plug-ins."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from PIL import Image

from protofleet.cli.main import main
from protofleet.lab.api.model import load_model
from protofleet.lab.local.experiment import read_experiment
from protofleet.lab.local.run import same_settings
from protofleet.protocol.settings.reader import read_toml
from tests.lab.local.test_run import ROOT, protofleet
from tests.support.plug_ins import DOCS, block, sha256

WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = None
from protofleet.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
PREDICT = """
import sys
from protofleet.cli.main import main
picture, model, *files = sys.argv[1:]
for more in ([], [word for file in files for word in ("--plugin", file)]):
    print("code", main(["predict", picture, "--model", model, *more]))
"""
PAGE = (DOCS / "plug-ins.md").read_text()
FILES = {name: block("plug-ins.md", name) for name in ("mynet", "blobs", "f1")}
FILES["fedexp"] = block("adding-a-method.md", "fedexp")
(TOML,) = re.findall(r"^```toml mine\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def written(folder):
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "mine.toml").write_text(TOML)
    return folder


@pytest.fixture
def place(tmp_path):
    return written(tmp_path)


def test_the_experiment_of_the_page_is_valid_and_its_plan_has_the_hashes(place, monkeypatch):
    monkeypatch.chdir("/")
    experiment = read_experiment(place / "mine.toml", [])
    table = json.loads(experiment.plan.encode())
    assert table["plugins"] == {
        "method": sha256(FILES["fedexp"]), "network": sha256(FILES["mynet"]), "metrics": sha256(FILES["f1"])
    }  # fmt: skip
    assert (table["method"], table["network"]["name"], experiment.data.source) == (
        "fedexp",
        "mynet",
        "blobs",
    )
    named = read_experiment(place / "mine.toml", ["method.name=nova", "network.name=two", "data.name=grey"])
    assert (named.plan.method, named.plan.network.name, named.data.source) == ("nova", "two", "grey")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("fedexp", "x = undefined\n", r"fedexp.py:1: NameError: name 'undefined' is not defined"),
        ("fedexp", "METHD = 1\n", r"fedexp.py has no METHOD = Method\(...\)"),
        ("mynet", "NETWORK = 1\n", r"mynet.py: NETWORK is int \(1\); write NETWORK = network\(...\)"),
        ("f1", "METRICS = {'loss': print}\n", r"f1.py: METRICS has 'loss'; a name consists of small letters"),
    ],
)
def test_a_broken_file_is_refused_in_one_line_with_exit_code_2(place, capsys, name, text, words):
    (place / f"{name}.py").write_text(text)
    assert main(["run", str(place / "mine.toml"), "--runs", str(place / "runs")]) == 2
    said = capsys.readouterr().err
    assert re.search(words, said) and said.count("\n") == 1 and not (place / "runs").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("DATA = lambda request: 1\n", "DATA returns int, but it must return Data"),
        ("def f(r):\n    return {}['x']\nDATA = f\n", r"blobs.py:2: KeyError: 'x'"),
        (FILES["blobs"].replace("request.shape)", "(3, 9, 9))"), r"\[3, 9, 9\], but the settings want \[3, 8, 8\]"),
        (FILES["blobs"].replace("% len(CLASSES)", "% 7"), r"blobs.py:\d+: IndexError: index 3 is out of bounds"),
        (FILES["blobs"].replace("classes=CLASSES", "classes=2"), "0 to 2; for 2 classes, the labels"),
    ],
)  # fmt: skip
def test_wrong_data_of_a_plug_in_are_refused_in_one_line_before_training(place, capsys, text, words):
    (place / "blobs.py").write_text(text)
    assert main(["data", str(place / "mine.toml")]) == 2
    said = capsys.readouterr().err
    assert re.search(words, said) and said.count("\n") == 1


def test_the_command_data_describes_the_data_of_a_plug_in(place, capsys):
    assert main(["data", str(place / "mine.toml")]) == 0
    assert (
        "train 54, validation 6, test 30; per class [18, 18, 18]; classes: dark, grey, light"
        in capsys.readouterr().out
    )


def demand_plug_ins_for_prediction(place, model):
    """Assert, in a process that has loaded no plug-ins, that a model predicts only if its plug-in files are named."""
    Image.new("RGB", (8, 8), (220, 220, 220)).save(place / "x.png")
    words = [str(place / "x.png"), str(model), str(place / "fedexp.py"), str(place / "mynet.py")]
    done = subprocess.run(
        [sys.executable, "-c", PREDICT, *words], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.count("code 2\n") == 1 and "light" in done.stdout.split("code 2")[1], done.stdout
    assert (
        "fedexp is a plug-in" in done.stderr
        and "name its file: predict or export --plugin FILE" in done.stderr
    )


@pytest.mark.slow
def test_all_commands_for_runs_accept_plug_ins(tmp_path):
    """All commands use the same folder of runs."""
    place = written(tmp_path)

    def said(*words, code=0):
        done = protofleet(*words, cwd=tmp_path)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    said("run", "mine.toml")
    folder = place / "runs" / "mine"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["method"] == "fedexp" and summary["network"] == "mynet"
    last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    assert 0 <= last["figures"]["macro_f1.global.mean"] <= 1
    kept = read_toml(folder / "experiment.toml")
    assert sorted(kept["plugins"]) == ["blobs.py", "f1.py", "fedexp.py", "mynet.py"]
    assert (folder / kept["method"]["file"]).read_text() == FILES["fedexp"]
    # When a coordinator and a device run as services, neither of them keeps the files in the folder that is exported.
    named = [word for file in ("fedexp.py", "mynet.py", "f1.py") for word in ("--plugin", str(place / file))]
    for one in ("coordinator", f"devices/{next((folder / 'devices').iterdir()).name}"):
        shutil.copytree(folder / one, place / "alone" / one)
        words = [
            "export",
            str(place / "alone" / one),
            "--format",
            "safetensors",
            "--out",
            str(place / "m" / one),
        ]
        assert "is a plug-in" in said(*words, code=2 if one == "coordinator" else 1)
        said(*words, *named)
    plug_ins = [place / file for file in ("fedexp.py", "mynet.py", "f1.py")]
    model = load_model(place / "alone" / "coordinator", which="last", plugins=plug_ins)
    assert model.classes == ("dark", "grey", "light")
    experiment = read_experiment(place / "mine.toml", [])
    assert same_settings(folder / "experiment.toml", experiment)
    (place / "fedexp.py").write_text(FILES["fedexp"] + "# changed\n")
    assert not same_settings(folder / "experiment.toml", read_experiment(place / "mine.toml", []))
    (folder / "summary.json").rename(place / "summary.json")  # Like a run that was stopped.
    assert "an unfinished run with other settings" in said("run", "mine.toml", code=2)
    (place / "fedexp.py").write_text(FILES["fedexp"])
    assert "continuing the unfinished run" in said("run", "mine.toml", "--resume")
    said("report", "runs/mine")
    assert "macro_f1 by domain over rounds" in (folder / "report.html").read_text()
    assert main(["export", str(folder), "--format", "safetensors"]) == 0
    demand_plug_ins_for_prediction(tmp_path, folder / "models" / "last")
    seeds = said("run", "mine.toml", "--seeds", "1", "2", "--set", "devices.processes=1", "--set", "rounds=1")
    assert "2 of 2 runs are finished" in seeds
    assert "fedexp" in said("compare", "runs/mine-s1", "runs/mine-s2")
    assert "chosen: method.lr = 0.02" in said(
        "sweep", "mine.toml", "--grid", "method.lr=0.02", "--set", "rounds=1"
    )
    said("centralised", "mine.toml", "--set", "rounds=1")


@pytest.mark.slow
def test_the_plug_ins_of_the_page_pass_all_checks_without_pytest(tmp_path):
    place, environment = written(tmp_path), {**os.environ, "PYTHONPATH": str(ROOT)}
    for name, checks in {"fedexp": 29, "mynet": 9, "blobs": 5, "f1": 5}.items():
        words = ["check", f"{name}.py", "--json", *(["--size", "8"] if name == "blobs" else [])]
        command = [sys.executable, "-c", WITHOUT_PYTEST, *words]
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert len(found["checks"]) == checks and found["failed"] == 0
        assert found["sha256"] == sha256(FILES[name])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"length": eight_bytes(1)}, down', '"stops": eight_bytes(1)}, down'), "cost says "),
        (("METHOD =", "# the same\nMETHOD ="), ""),
        (("        moves = ", "        raise ValueError('half')\n        moves = "), r".py:\d+: ValueError: half"),
    ],
)  # fmt: skip
def test_a_failed_check_is_reported_with_the_line_that_raised(tmp_path, change, words):
    from protofleet.lab.contract import checks
    from protofleet.lab.contract.worlds import Subject
    from protofleet.lab.local.own_plugins import own_plugins

    path = tmp_path / "fedexp.py"
    text = FILES["fedexp"].replace(*change)
    assert text != FILES["fedexp"]
    path.write_text(text)
    found = own_plugins([str(path)])
    bench = checks.Bench(Subject("fedexp", found.hashes[0], allowed=found.allowed()), tmp_path)
    every = checks.of_method(bench)
    wanted = {name: every[name] for name in ("cost is what crosses",)}
    (outcome,) = checks.outcomes(wanted, str(path))
    assert outcome.holds == (not words) and re.search(words, outcome.problem), outcome.problem


RULE = """class Doubled(torch.nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head = head
    def forward(self, z):
        return 2 * self.head(z)


class Client(fedavg.Client):
    def rule(self):
        return Doubled(self.model.head)

"""


def test_the_check_reports_a_rule_that_cannot_be_exported(tmp_path):
    """The method learns and predicts by its rule, but `protofleet export` would fail."""
    from protofleet.lab.contract import checks
    from protofleet.lab.contract.worlds import Subject
    from protofleet.lab.local.own_plugins import own_plugins

    path = tmp_path / "doubled.py"
    path.write_text(FILES["fedexp"].replace("class Client(fedavg.Client):\n", RULE))
    found = own_plugins([str(path)])
    every = checks.of_method(
        checks.Bench(Subject("doubled", found.hashes[0], allowed=found.allowed()), tmp_path)
    )
    wanted = {name: every[name] for name in ("learns", "predicts by its rule", "export works")}
    learns, predicts, exported = checks.outcomes(wanted, str(path))
    assert learns.holds and predicts.holds
    assert "Doubled, the rule of the prediction mode 'predict', cannot be exported: " in exported.problem
