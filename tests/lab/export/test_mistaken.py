"""`export`, `predict` and `model` refuse a wrong folder, file or word with one line that fits the mistake."""

import json

import pytest
from PIL import Image

from protofleet.cli.main import main


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return folders like those that a user may name; the runs in them cannot be opened and need not be."""
    place = tmp_path_factory.mktemp("place")
    for run in ("one", "two"):
        for folder in ("coordinator", "devices/owl/kept", "logs"):
            (place / "runs" / run / folder).mkdir(parents=True)
        (place / "runs" / run / "coordinator" / "spool.sqlite").touch()
        (place / "runs" / run / "devices" / "owl" / "kept" / "last.safetensors").touch()
    (place / "runs" / "two" / "models" / "best").mkdir(parents=True)
    (place / "runs" / "two" / "models" / "best" / "card.json").write_text("{}")
    versions = place / "board" / "state" / "models"
    (versions / "v000002").mkdir(parents=True)
    card = {"plan_sha256": "ab", "round": 2, "tensors": "cd"}
    (versions / "v000002" / "card.json").write_text(json.dumps(card))
    (versions / "current").symlink_to("v000002")
    (place / "empty").mkdir()
    for name in ("a", "b", "c", "d", "e", "run9"):
        (place / "many" / name).mkdir(parents=True)
    (place / "demo.toml").touch()
    Image.new("RGB", (8, 8)).save(place / "a.png")
    return place


SERVED = "there is no version of a model in {}: name the folder of a device that has [models]"
MISTAKES = [
    ("export runs/noe", "there is no folder runs/noe; did you mean one? there are one, two"),
    ("export many/run", "there is no folder many/run; did you mean run9? there are a, b, c, d, e ..."),
    ("export nothere/run", "there is no folder nothere/run; name a run's folder"),
    ("export demo.toml", "demo.toml is a file; name a run's folder"),
    ("export runs", "runs is no run, and holds some: name one of them, runs/one, runs/two"),
    ("export .", ". is no run, and holds some: name one of them, runs/one, runs/two"),
    ("export runs/one/devices", "name one of them, runs/one/devices/owl"),
    ("export runs/one/logs", "runs/one/logs holds no run: "),
    ("export runs/two/models/best", "runs/two/models/best is a model already"),
    ("export board/state", "a device that serves its models: board/state/models/current is one"),
    ("export runs/one --format safetensors,onnx", "separate the formats with spaces: safetensors onnx"),
    ("export --format onnx runs/one", "name the run before --format, because all words after --format are read"),
    ("export runs/one --format onxn", "--format is 'onxn'; did you mean onnx? there are safetensors"),
    ("export runs/one --out model.onnx", "--out is model.onnx, which is the name of a file; name a folder"),
    ("export runs/one --out a.png/x", "{place}/a.png is not a folder; name another folder with --out"),
    ("predict nothere.png", "use --model DIR with a folder that `protofleet export` has written"),
    ("predict a.png --model runs/one", "`protofleet export runs/one` makes one, runs/one/models/last, for --model"),
    ("predict a.png --model runs/two", "has been exported: say --model runs/two/models/best"),
    ("predict a.png --model a.png", "a.png is a file; name the folder of a model"),
    ("predict a.png --model empty", "or name what `protofleet export` has written"),
    ("predict a.png --model gone", "there is no folder gone; there are board, empty, many, runs"),
    ("predict --watch a.png", "a.png is a file, and --watch takes a folder; name the picture without --watch"),
    ("model pin v000002 nothere/deep", "there is no folder nothere/deep; name the folder of a device"),
    ("model pin v000002 runs/one", SERVED.format("runs/one")),
    ("model list board", "there is no version of a model in board itself: name one of board/state"),
    ("model rollback board/state/models/v000002", "board/state/models/v000002 is one model; name the folder of a"),
    ("model rollback demo.toml", "demo.toml is a file; name the folder of a device that serves its models"),
    ("model rollback board/state", "only v000002 has been served"),
    ("model unpin board/state", "no version is pinned in board/state/models"),
    ("model pin 7 board/state", "there is no version v000007 in board/state/models; the versions are: v000002"),
]  # fmt: skip


@pytest.mark.parametrize("words, problem", MISTAKES, ids=[words for words, _ in MISTAKES])
def test_each_mistake_is_refused_with_one_line_that_fits_it(place, capsys, monkeypatch, words, problem):
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    assert main(words.split()) in (1, 2)
    out, err = capsys.readouterr()
    assert err.startswith("protofleet: ") and err.count("\n") == 1 and not out
    assert problem.format(place=place) in err, err
    assert sorted(place.rglob("*")) == before, "a refused command writes no files"
