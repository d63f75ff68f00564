"""`protofleet export` on real runs: its files, programs that read them, and one error line for each mistake."""

import errno
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protofleet.cli.main import main
from protofleet.coordinator.spool.spool import Spool
from protofleet.lab.export import check, export, formats, program
from protofleet.lab.export.source import Wanted, find_model
from protofleet.methods.nets.weights_file import read_weights
from protofleet.methods.served.card import read_card
from protofleet.methods.served.rebuild import rebuild
from protofleet.protocol.settings.reader import read_toml
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.installation import extras
from protofleet.runtime.installation.extras import EXTRAS
from tests.methods.served.trained import plan_of
from tests.rooms import PACKAGES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
RUN = """
name = "{name}"
rounds = {rounds}
method = {{ name = "{method}", epochs = 2, batch = 16, lr = 0.05 }}
data = {{ source = "digits", samples = 40, size = 16 }}
devices = {{ clients = {{ optdigits = 2 }}, processes = {processes} }}
network = {{ name = "cnn23" }}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folder of two runs.

    The run "all" has a global model and a process for each device.
    The run "own" has devices' own models and one process.
    """
    place = tmp_path_factory.mktemp("place")
    for name, method, rounds, processes in (("all", "fedlsa", 3, '"each"'), ("own", "fedproto", 2, 1)):
        text = RUN.format(name=name, method=method, rounds=rounds, processes=processes)
        (place / f"{name}.toml").write_text(text)
        command = [sys.executable, "-m", "protofleet", "run", f"{name}.toml"]
        subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=200)
    return place / "runs"


def exported(*arguments, code=0):
    assert main(["export", *map(str, arguments)]) == code


def said(capsys, *arguments, code=1):
    exported(*arguments, code=code)
    text = capsys.readouterr().err
    assert text.startswith("protofleet: ") and text.count("\n") == 1
    return text.removeprefix("protofleet: ").strip()


def summary(runs, name):
    return json.loads((runs / name / "summary.json").read_text())


def card_in(folder):
    return read_card((folder / "card.json").read_bytes())


def test_best_is_the_model_that_the_summary_names_and_last_is_the_final_model(runs, tmp_path):
    found = summary(runs, "all")["accuracy"]
    exported(runs / "all", "--best", "--format", "safetensors", "--out", tmp_path / "best")
    best = card_in(tmp_path / "best")
    named = found["best_by_validation"]
    assert (best.chosen, best.round, best.validation) == ("best", named["point"], named["validation_mean"])
    assert best.test["mean"] == named["mean"]
    exported(runs / "all", "--format", "safetensors", "--out", tmp_path / "last")
    last = card_in(tmp_path / "last")
    assert (last.chosen, last.round, last.test["mean"]) == ("last", 3, found["final"]["mean"])
    assert last.classes == tuple("0123456789") and last.name == "all"


def test_the_model_is_rebuilt_from_the_card_and_the_tensors_of_an_export(runs, tmp_path):
    exported(runs / "all", "--way", "anchor", "--format", "safetensors", "--out", tmp_path / "m")
    again = rebuild(card_in(tmp_path / "m"), read_weights(tmp_path / "m" / "model.safetensors"))
    model = find_model(runs / "all", Wanted(way="anchor"))
    samples = model.card.input.drawn(5)
    with torch.no_grad():
        assert torch.equal(again(samples), model.served(samples))


def test_the_export_reports_the_assumed_scaling_if_no_device_states_it(runs, tmp_path, capsys):
    """This happens on the host of a coordinator, where no device keeps its models."""
    shutil.copytree(runs / "all" / "coordinator", tmp_path / "alone")
    exported(tmp_path / "alone", "--format", "safetensors", "--out", tmp_path / "m")
    assert "nobody here knows how devices scale their samples; assumed: 0 to 255" in capsys.readouterr().out
    exported(runs / "all", "--format", "safetensors", "--out", tmp_path / "n")
    assert "assumed" not in capsys.readouterr().out


def test_the_card_has_the_accuracies_of_the_exported_prediction_mode(runs, tmp_path):
    """Earlier, the card always had the accuracies of the method's default prediction mode."""
    for chosen in ("--best", "--last"):
        exported(
            runs / "all", chosen, "--way", "anchor", "--format", "safetensors", "--out", tmp_path / chosen
        )
        card = card_in(tmp_path / chosen)
        lines = [json.loads(line) for line in (runs / "all" / "rounds.jsonl").read_text().splitlines()]
        (line,) = [line for line in lines if line["round"] == card.round + 1]
        for found, views in ((card.test, line["accuracy"]), ({"mean": card.validation}, line["validation"])):
            (own,) = views["global-anchor"].values()
            assert found["mean"] == own
    words = ["--device", "optdigits-1", "--way", "classifier", "--format", "safetensors"]
    exported(runs / "own", *words, "--out", tmp_path / "d")
    card = card_in(tmp_path / "d")
    assert (card.validation, card.test) == (None, {})


@pytest.mark.parametrize("name", ["all", "own"])
def test_the_model_of_one_device_is_exported_and_checked_in_another_process(runs, tmp_path, name, capsys):
    arguments = [runs / name, "--device", "optdigits-2", "--check", "--json", "--out", tmp_path / "m"]
    exported(*arguments, "--format", "safetensors", "pt2", "torchscript", "--best")
    found = json.loads(capsys.readouterr().out)
    assert set(found["checked"]) == {"model.pt2", "model.torchscript.pt"}
    assert max(found["checked"].values()) <= 1e-5
    card = card_in(tmp_path / "m")
    assert (card.device, card.chosen, card.classes) == ("optdigits-2", "best", tuple("0123456789"))
    assert set(card.files) == {path.name for path in (tmp_path / "m").iterdir()} - {"card.json"}


def test_the_exported_program_predicts_without_protofleet(runs, tmp_path, capsys):
    exported(runs / "all", "--check", "--out", tmp_path / "m")
    assert "model.onnx: 7 samples, the same classes" in capsys.readouterr().out
    program = (tmp_path / "m" / "predict.py").read_text()
    assert "protofleet" not in program
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    alone = "import runpy, sys; sys.modules['protofleet'] = None; "
    alone += "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    ran = subprocess.run(
        [sys.executable, "-I", "-c", alone, str(tmp_path / "m" / "predict.py"), str(tmp_path / "a.png")],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    model = find_model(runs / "all", Wanted())
    with torch.no_grad():
        scores = model.served(torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1)[None])
    assert ran.stdout.strip() == model.card.classes[int(scores.argmax())]


def test_each_line_of_the_example_of_the_page_your_model_works(runs, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "your-model.md").read_text()
    install_it, _, export_it, use_it = re.search(r"```sh long\n(.*?)```", page, re.DOTALL)[1].splitlines()
    assert install_it == f"pip install {' '.join(EXTRAS['export'])}"
    shutil.copytree(runs / "all", tmp_path / "runs" / "demo")
    monkeypatch.chdir(tmp_path)
    assert export_it.startswith("protofleet export runs/demo --best")
    exported(*export_it.split()[2:])
    assert sorted(path.name for path in Path("runs/demo/models/best").iterdir()) == sorted(
        re.findall(r"^    ([\w.]+) +", re.search(r"```text\n(.*?)```", page, re.DOTALL)[1], re.MULTILINE)
    )
    Image.new("RGB", (16, 16)).save("picture.png")
    subprocess.run([sys.executable, *use_it.split()[1:]], check=True, timeout=100)
    python = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    subprocess.run([sys.executable, "-c", python], check=True, timeout=100)


def test_the_summary_and_the_report_name_the_prediction_rule(runs):
    assert summary(runs, "all")["rules"] == {"predict": "classifier, sphere", "anchor": "nearest, cosine"}
    assert summary(runs, "own")["rules"]["predict"] == "nearest, squared"
    page = (runs / "all" / "report.html").read_text()
    assert "predicts by classifier, sphere (measured beside it: anchor by nearest, cosine)" in page


def test_the_folder_of_a_coordinator_or_of_a_device_is_enough_for_an_export(runs, tmp_path, capsys):
    """In a deployed fleet each of the two folders is on its own machine."""
    shutil.copytree(runs / "all" / "coordinator", tmp_path / "state")
    exported(tmp_path / "state", "--best", "--format", "safetensors", "--out", tmp_path / "a")
    assert card_in(tmp_path / "a").tensors == find_model(runs / "all", Wanted("best")).card.tensors
    shutil.copytree(runs / "own" / "devices" / "optdigits-1", tmp_path / "device")
    exported(tmp_path / "device", "--format", "safetensors")
    assert card_in(tmp_path / "device" / "models" / "last").device == "optdigits-1"
    capsys.readouterr()
    assert "not of optdigits-2" in said(capsys, tmp_path / "device", "--device", "optdigits-2")
    assert "in its own folder, on its own machine" in said(capsys, tmp_path / "state", "--device", "d")


def test_mistakes_are_refused_in_one_line_with_a_fix(runs, tmp_path, capsys):
    all_, own = runs / "all", runs / "own"
    assert "took no part in" in said(capsys, all_, "--device", "optdigits-9")
    assert "did you mean optdigits-1? there are optdigits-1" in said(capsys, all_, "--device", "optdigits-11")
    assert "took no part in" in said(capsys, all_, "--device", "..")
    assert (
        said(capsys, all_, "--way", "x")
        == "the prediction mode 'x' does not exist; there are predict, anchor"
    )
    assert "choose a device with --device: there are optdigits-1" in said(capsys, own, code=2)
    assert "there are safetensors, onnx" in said(capsys, all_, "--format", "tflite", code=2)
    assert "holds no run" in said(capsys, tmp_path)
    assert "not allowed with argument" in said(capsys, all_, "--best", "--last", code=2)
    assert "add onnx to --format" in said(capsys, all_, "--template", "--format", "pt2", code=2)


def test_a_run_without_a_finished_round_has_no_model(tmp_path, capsys):
    spool = Spool(tmp_path / "x" / "coordinator", durable=False)
    spool.start_run("x", plan_of("fedavg").encode().decode(), 1)
    spool.close()
    assert (
        said(capsys, tmp_path / "x")
        == f"{tmp_path / 'x'} holds no model yet, because the first round has not ended"
    )


def test_the_error_for_the_run_of_an_earlier_version_names_the_reason(runs, tmp_path, capsys):
    old = tmp_path / "old"
    shutil.copytree(runs / "all", old)
    shutil.rmtree(old / "coordinator" / "best")
    for folder in (old / "devices").glob("*/kept"):
        shutil.rmtree(folder)
    assert said(capsys, old, "--best") == (
        f"{old} has no best model (an earlier version of protofleet wrote this folder); use --last"
    )
    assert "an earlier version of protofleet wrote this folder" in said(
        capsys, old, "--device", "optdigits-1"
    )
    (old / "rounds.jsonl").unlink()
    assert "no device has validation samples" in said(capsys, old, "--best")


def test_a_damaged_snapshot_is_refused_with_the_reason(runs, tmp_path, capsys):
    bad = tmp_path / "bad"
    shutil.copytree(runs / "all", bad)
    for path in (bad / "coordinator" / "snapshots").glob("*.body"):
        path.write_bytes(b"x" + path.read_bytes()[1:])
        assert path.exists()
    assert "its bytes do not match the hash in its name" in said(capsys, bad)


def test_a_folder_that_is_not_an_export_is_not_overwritten(runs, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    out = ["--format", "safetensors", "--out"]
    assert "does not contain an earlier export" in said(capsys, runs / "all", *out, tmp_path / "mine", code=2)
    assert "is not a folder" in said(capsys, runs / "all", *out, tmp_path / "mine" / "thesis.txt", code=2)
    assert "cannot be made" in said(capsys, runs / "all", *out, tmp_path / "mine" / "thesis.txt" / "m")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "x"


@pytest.mark.parametrize("broken", ["the check", "a full disk"])
def test_an_export_that_fails_leaves_no_folder(runs, tmp_path, capsys, monkeypatch, broken):
    def fails(*_):
        raise (
            OSError(errno.ENOSPC, "No space left on device", "x")
            if broken == "a full disk"
            else RunError("no")
        )

    monkeypatch.setattr(export, "check_files", fails)
    command = [runs / "all", "--format", "safetensors", "--check", "--out"]
    said(capsys, *command, tmp_path / "a" / "b" / "m")
    assert not list(tmp_path.iterdir())
    (tmp_path / "a").mkdir()
    said(capsys, *command, tmp_path / "a" / "b" / "m")
    assert [path.name for path in tmp_path.rglob("*")] == ["a"], "earlier files stay"


def test_a_later_export_replaces_an_earlier_one_completely(runs, tmp_path):
    place = tmp_path / "m"
    exported(runs / "all", "--format", "pt2", "--out", place)
    (tmp_path / ".m.abc.new").mkdir()  # left by an export that was killed
    place.rename(tmp_path / ".m.abc.old")  # left by an export that died between its two renames
    exported(runs / "all", "--format", "safetensors", "--best", "--out", place)
    assert sorted(path.name for path in place.iterdir()) == ["card.json", "model.safetensors", "predict.py"]
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_full_disk_leaves_the_earlier_export_unchanged(runs, tmp_path, capsys, monkeypatch):
    place, write = tmp_path / "m", Path.write_bytes
    exported(runs / "all", "--format", "safetensors", "--out", place)
    capsys.readouterr()
    before = (place / "card.json").read_bytes()

    def full(path, content):
        if path.name == "card.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert "the disk is full" in said(
        capsys, runs / "all", "--format", "safetensors", "--best", "--out", place
    )
    assert (place / "card.json").read_bytes() == before and [path.name for path in tmp_path.iterdir()] == [
        "m"
    ]


def test_onnx_without_its_packages_is_refused_and_is_not_the_default(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(formats, "has_onnx", lambda: False)
    monkeypatch.setattr(export, "has_onnx", lambda: False)
    monkeypatch.setattr(extras, "missing", lambda extra: ["onnx", "onnxscript"])
    words = "an export as ONNX needs the packages onnx and onnxscript: pip install onnx onnxscript"
    assert said(capsys, runs / "all", "--format", "onnx", code=2) == words
    assert said(capsys, runs / "all", "--template", code=2) == words
    exported(runs / "all", "--out", tmp_path / "m")
    assert (tmp_path / "m" / "model.pt2").exists() and not (tmp_path / "m" / "model.onnx").exists()
    assert "a .pt2 file is written instead" in capsys.readouterr().out


def test_hints_name_the_packages_of_every_extra():
    """No index has protofleet, so `pip install 'protofleet[export]'` would not help."""
    told = read_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    for name in ("dev", "docs"):  # Only a checkout installs them, by its Makefile.
        told.pop(name)
    assert {
        name: tuple(re.match(r"[\w-]+", one)[0] for one in lines) for name, lines in told.items()
    } == EXTRAS
    hints = [
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "pip install 'protofleet[" in path.read_text()
    ]
    assert [path.name for path in hints] == ["extras.py"], "a comment in this file gives the reason"


def test_an_export_of_a_missing_run_does_not_name_packages(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(export, "has_onnx", lambda: False)
    for words in ([], ["--format", "onnx", "--check"]):
        assert main(["export", str(tmp_path / "nope"), *words]) == 1
        out, err = capsys.readouterr()
        assert out == "" and "nope" in err and "onnx" not in err


def test_the_extra_export_has_all_packages_that_an_export_needs(runs, capsys, monkeypatch):
    """These are the packages that the messages and programs name for writing ONNX, checking it, and predict.py."""
    extra = read_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]["export"]
    inside = {re.match(r"[\w-]+", line)[0] for line in extra}
    assert {"onnx", "onnxscript", program.IMPORTS["onnx"]} == inside
    monkeypatch.setattr(
        check.importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else name
    )
    assert said(capsys, runs / "all", "--format", "onnx", "--check", code=2) == (
        "--check of an ONNX file needs the package onnxruntime: pip install onnxruntime; or leave out --check"
    )
    assert not (runs / "all" / "models").exists()


def test_another_run_can_begin_with_an_exported_model(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PROTOFLEET_DATA", str(tmp_path / "data"))
    exported(runs / "own", "--device", "optdigits-1", "--format", "safetensors", "--out", tmp_path / "model")
    capsys.readouterr()
    assert main(["weights", str(tmp_path / "model" / "model.safetensors")]) == 0
    table = capsys.readouterr().out
    text = RUN.format(name="further", method="fedavg", rounds=1, processes=1)
    (tmp_path / "further.toml").write_text(f"{text}{table}")
    command = [sys.executable, "-m", "protofleet", "run", "further.toml"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=200)
    assert summary(tmp_path / "runs", "further")["rounds_done"] == 1
