"""Tests that each mistake of a user, in all sub-commands, gives one line that names it, and never a traceback."""

import os
import subprocess
import sys

import pytest

from protofleet.cli.main import main
from tests.support.enrol import ROOT
from tests.support.small_experiment import TWO

LONG = "n" * 300
MISFIT = """
name = "run"
rounds = 1
classes = 3
channels = 1
federation = "lab"
method = { name = "fedavg" }
network = { name = "resnet18" }
"""
# The words typed after `protofleet` -> the text that the one line must contain.
MISTAKES = {
    "": "arguments are required: COMMAND",
    "run": "required: experiments",
    "run none.toml": "there is no file none.toml",
    "run folder": "folder cannot be read: Is a directory; name a TOML file",
    "run empty.toml": "name is missing",
    "run binary.toml": "binary.toml cannot be read",
    "run types.toml": 'rounds is "three", but must be a whole number',
    "run negative.toml": "rounds is -3, it must be at least 1",
    "run exp.toml --runs afile": "afile/two cannot be made: Not a directory; name another folder with --runs",
    "run exp.toml --set rounds": "not of the form table.key=value",
    "run exp.toml --set rounds.x=3": "rounds is not a table",
    "run exp.toml --set method=fedavg": "must be a table",
    "run exp.toml --set devices.clients.optdigits=-1": "is -1, it must be at least 1",
    "run exp.toml --set name=a/b": "'a/b' is no name",
    "run exp.toml --resume": "there is no run to resume",
    "run exp.toml --fresh --resume": "not allowed with argument --fresh",
    "run exp.toml --seeds 1 1": "two of the runs have the name two-s1",
    "report none": "none does not exist",
    "report afile": "afile holds no run: there is no summary.json in it",
    "report folder": "there is no summary.json in it",
    "report garbled": "summary.json cannot be read",
    "compare none afile": "none does not exist; afile holds no run: there is no summary.json in it",
    "compare folder --share 2": "it must be a number, above 0 and at most 1",
    "advise run": "neither --budget nor --accuracy is given",
    "advise none --budget 1MB": "none does not exist\n",
    "advise run --budget 1MB": "run holds no finished run: there is no summary.json in it; finish it first\n",
    "leakage": "required: run",
    "leakage none": "none does not exist; name the folder of a run",
    "leakage folder": 'folder has no kept answers: set [keep] answers = [1, "last"] before a run, repeat',
    "leakage folder --replay": "experiment.toml does not exist, so there is no experiment to repeat",
    "leakage folder --attacker A7": "--attacker is 'A7'; there are A0, A1, A2, A3",
    "leakage folder --kinds weight": "--kinds has 'weight'; did you mean weights?",
    "leakage folder device.toml": "device.toml is only for `leakage mine`",
    "leakage mine": "needs the device's settings: leakage mine device.toml",
    "leakage mine none.toml": "there is no file none.toml",
    "leakage mine device.toml --replay": "--replay is for the folder of a run",
    "leakage mine device.toml": "does not exist: this device has taken part in no run yet",
    "leakage mine device.toml --plan empty.toml": "empty.toml is not the plan of a run",
    "sweep exp.toml": "has no table [grid]",
    "sweep exp.toml --grid method.lr": "not of the form table.key=value,value",
    "centralised folder": "folder cannot be read",
    "centralised exp.toml --runs afile": "cannot be made: Not a directory",
    "coordinator none.toml": "there is no file none.toml",
    "coordinator exp.toml": "exp.toml is an experiment; `protofleet run exp.toml` runs it",
    "coordinator device.toml": "is a device's file; `protofleet device device.toml` runs it",
    "coordinator misfit.toml": 'network.name is "resnet18", which takes images of 3 channels, not 1: change channels',
    "device folder": "folder cannot be read",
    "device exp.toml": "exp.toml is an experiment; `protofleet run exp.toml` runs it",
    "device misfit.toml": "is a coordinator's file; `protofleet coordinator misfit.toml` runs it",
    "run misfit.toml": "is a coordinator's file; `protofleet coordinator misfit.toml` runs it",
    "run device.toml": "is a device's file; `protofleet device device.toml` runs it",
    "sweep device.toml --grid method.lr=1": "is a device's file; `protofleet device device.toml` runs it",
    "run exp.toml --set network.name=resnet18 --set data.channels=1": (
        'exp.toml with --set: network.name is "resnet18", which takes images of 3 channels, not 1: change '
        "data.channels or take "
    ),
    "run exp.toml --set network.name=cnn23 --seeds 1 2": (
        'network.name is "cnn23", which takes images from 16x16 on, not 8x8: change data.size or take '
    ),
    "run exp.toml --set devices.networks=['mlp','cnn23']": 'devices.networks[1] is "cnn23", which takes images from',
    "sweep exp.toml --grid network.name=mlp,cnn23": 'exp.toml with --grid: network.name is "cnn23", which takes',
    "sweep exp.toml --grid lr=0.1,0.2": "with --grid: lr is not a setting; did you mean method.lr?",
    "run exp.toml --set quorum=1": "with --set: quorum is not a setting; did you mean policy.quorum?",
    "run exp.toml --set policy.cohort=3": "policy.cohort is 3, but there are 2 devices",
    "run exp.toml --set devices={clients={optdigits=900}}": (
        "devices.clients.optdigits is 900, and the samples of optdigits are too few for so many: client 539 of 900 "
        "would have 1 training sample, but the smallest allowed number is 2; "
        "the largest devices.clients.optdigits that works is 719"
    ),
    "run exp.toml --set data.source=mnist --set data.root=nowhere --set devices={count=2}": "/nowhere (mnist)",
    "run exp.toml --seeds 1 2 --runs afile": "afile cannot be made: Not a directory; name another folder with --runs",
    "device exp.toml --enrolled none": "is not signed",
    "fleet folder": "must contain a folder for each device",
    "fleet folder --broker x:y": "it is 'y', it must be a whole number",
    "fleet folder --processes -1": "it is '-1', it must be a whole number, at least 0",
    "health exp.toml": "has no metrics_port",
    "unban --folder none": "none is no folder of a run: there is no none/coordinator; name a run such as runs/demo",
    "unban x --folder afile": "afile is no folder of a run",
    "keys a/b": "'a/b' is no name",
    "keys k --folder afile": "afile: a file is where a folder should be; move it away",
    f"keys k --folder {LONG}": "its name is too long; name another place",
    "keys k --folder loop/x": "its links form a circle",
    "enrol list --root none": "for a new federation, `protofleet enrol root none` makes a root",
    "enrol root afile": "afile: a file is where a folder should be",
    "enrol fleet afile d1": "afile/root: a file is where a folder should be",
    "enrol request a~b": "'a~b' is no name",
    "enrol install binary.toml": "binary.toml is no approval",
    "enrol install none": "there is no file none; give the path of the approval: `protofleet enrol approve`",
    "enrol install folder": "folder cannot be read",
    "enrol cut x y --root none": "'y' is not of the form HOST:PORT",
    "deploy plan": "there is no file fleet.toml",
    "deploy plan --fleet binary.toml": "binary.toml cannot be read",
    "deploy revoke": "give the names of the hosts to revoke, as in `protofleet deploy revoke board-1`",
    "deploy backup": "give the names of the hosts to backup, as in `protofleet deploy backup coordinator`",
    "deploy tune --hours -1": "it must be a number, above 0",
    "doctor --broker x": "not of the form HOST:PORT",
    "doctor --broker x:99999": "is 'x:99999', which is not of the form HOST:PORT (such as broker.example:8883)",
    "go-on folder --from-round 2": "folder/coordinator holds no run: there is no spool.sqlite in it; give the run's",
    "methods nix": "no method 'nix'",
    "data exp.toml --set data.sauce=x": "data.sauce is not a setting; did you mean source?",
    "data empty.toml": "empty.toml",
    "weights none": "none: No such file or directory",
    "weights folder": "folder: Is a directory",
    "weights binary.toml": "binary.toml",
    "public-set nix": "nix",
    "public-set digits --samples -1": "it is '-1'",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "exp.toml").write_text(TWO)
    (folder / "device.toml").write_text('name = "a"\nkey = "a.key"\ncoordinator_key = "c.pub"\n')
    (folder / "misfit.toml").write_text(MISFIT)
    (folder / "types.toml").write_text(TWO.replace("rounds = 1", 'rounds = "three"'))
    (folder / "negative.toml").write_text(TWO.replace("rounds = 1", "rounds = -3"))
    (folder / "empty.toml").touch()
    (folder / "binary.toml").write_bytes(bytes(range(256)) * 4)
    (folder / "afile").write_text("no folder\n")
    (folder / "folder").mkdir()
    (folder / "garbled").mkdir()
    (folder / "garbled" / "summary.json").write_text("garbage")
    (folder / "loop").symlink_to("loop")
    (folder / "run" / "coordinator").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_gives_one_line_that_names_it(place, monkeypatch, capsys, typed):
    monkeypatch.chdir(place)
    code = main(typed.split())
    out, err = capsys.readouterr()
    assert code in (1, 2) and out == ""
    assert err.startswith("protofleet: ") and err.count("\n") == 1 and MISTAKES[typed] in err, err


UNUSUAL = {
    "a reader that stops after a line, and a locale with ASCII letters only": (
        '"$0" -m protofleet methods | head -1',
        "",
    ),
    "a full disk under its output": (
        '"$0" -m protofleet unban --folder run > /dev/full',
        "No space left on device",
    ),
    "no output at all": ('"$0" -m protofleet unban --folder run >&-', ""),
    "a terminal of 20 columns": ('"$0" -m protofleet run --help', ""),
}


@pytest.mark.slow
@pytest.mark.parametrize(("words", "said"), UNUSUAL.values(), ids=UNUSUAL)
def test_an_unusual_environment_causes_no_traceback(place, words, said):
    plain = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "COLUMNS": "20",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-c", words, sys.executable], cwd=place, env={**os.environ, **plain},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr and said in done.stderr
