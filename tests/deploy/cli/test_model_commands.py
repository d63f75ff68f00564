"""`protofleet model` and `protofleet predict`, as a user has them in a shell; and what is said of each mistake."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protofleet.deploy.cli.main import main
from protofleet.edge_client.serving.publisher import ModelPublisher, Origin
from protofleet.edge_client.serving.settings import ModelSettings
from protofleet.edge_client.trainer.job import EVALUATE, LocalJob
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.nets.weights_file import sha256_of_file
from protofleet.protocol.storage.disk import Disk
from tests.support.small_federation import NAMES, plan, shard

BOARD = re.compile(r"^```sh board\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """A device's folder with three versions, and pictures of other sizes than the model's."""
    folder = tmp_path_factory.mktemp("board")
    published = ModelPublisher(ModelSettings(), folder / "state", Origin("owl", None), Disk(durable=False))
    made, data = plan("fedavg", 3), shard(0)
    half = made.client_half(data.train, "owl", validation=data.validation)
    job = LocalJob(half, data, "global", models=published.of(made, NAMES))
    for round in (2, 3, 4):
        job.run(EVALUATE, round, to_numpy(dict(made.server_half().payload())))
    dice = np.random.default_rng(0)
    (folder / "pictures").mkdir()
    for name, size in (("wide.png", (9, 31)), ("tall.jpg", (64, 20)), ("grey.png", (8, 8))):
        pixels = dice.integers(0, 255, (*size, 3), np.uint8)
        image = Image.fromarray(pixels)
        (image.convert("L") if name == "grey.png" else image).save(folder / "pictures" / name)
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n half")
    (folder / "empty").mkdir()
    return folder


def said(capsys, *words):
    code = main([str(word) for word in words])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_versions_are_listed_with_their_links(board, capsys):
    code, out, _ = said(capsys, "model", "list", board / "state")
    lines = out.splitlines()
    assert code == 0 and [line.split()[0] for line in lines] == ["v000001", "v000002", "v000003"]
    assert "global    round 3 " in lines[2] and lines[2].endswith("current")
    assert lines[1].endswith("previous") and "champion" in lines[0]
    code, out, _ = said(capsys, "model", "list", board / "state" / "models", "--json")
    rows = json.loads(out)["versions"]
    assert [row["round"] for row in rows] == [1, 2, 3] and rows[2]["links"] == ["current"]


def test_without_a_folder_those_of_the_device_here_are_meant(board, capsys, monkeypatch):
    monkeypatch.chdir(board)
    assert said(capsys, "model", "list")[0] == 0
    monkeypatch.chdir(board / "empty")
    code, _, err = said(capsys, "model", "list")
    assert code == 2 and err.startswith("protofleet: there is no version of a model in models, state, ")


def test_a_version_is_pinned_rolled_back_and_let_go(board, capsys):
    state = board / "state"
    assert said(capsys, "model", "pin", "v000001", state)[1].startswith(
        f"{state}/models/current is v000001 of round 1 (pinned"
    )
    code, _, err = said(capsys, "model", "pin", "9", state)
    assert (code, err) == (
        2, f"protofleet: there is no version v000009 in {state}/models; there are: v000001, v000002, v000003\n",
    )  # fmt: skip
    code, _, err = said(capsys, "model", "pin", "newest", state)
    assert code == 2 and "it must be a version such as v000017" in err
    assert "is v000003 of round 3 (the newest" in said(capsys, "model", "unpin", state)[1]
    assert said(capsys, "model", "unpin", state)[0] == 2
    assert "is v000001 of round 1 (pinned" in said(capsys, "model", "rollback", state)[1]
    assert "is v000003" in said(capsys, "model", "rollback", state)[1]
    said(capsys, "model", "unpin", state)


def test_the_commands_of_the_page_do_what_it_says(board, capsys, monkeypatch):
    monkeypatch.chdir(board)
    page = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
    commands = [line for block in BOARD.findall(page) for line in block.splitlines()]
    assert len(commands) == 7
    for command in commands:
        code, out, err = said(capsys, *command.split()[1:])
        assert code == 0 and out and not err, (command, err)


def test_pictures_of_any_size_are_predicted(board, capsys):
    code, out, _ = said(capsys, "predict", board / "pictures", "--model", board / "state", "--json")
    found = json.loads(out)
    assert code == 0 and found["model"]["round"] == 3
    assert sorted(Path(row["image"]).name for row in found["predictions"]) == [
        "grey.png", "tall.jpg", "wide.png",
    ]  # fmt: skip
    for row in found["predictions"]:
        assert row["class"] == max(row["probabilities"], key=row["probabilities"].get) and set(NAMES) == set(
            row["probabilities"]
        )
        assert sum(row["probabilities"].values()) == pytest.approx(1)
    code, out, _ = said(capsys, "predict", board / "pictures" / "wide.png", "--model", board / "state")
    assert out.startswith(f"{board}/pictures/wide.png  ") and out.rstrip().endswith("%")
    version = board / "state" / "models" / "v000002"
    code, out, _ = said(capsys, "predict", board / "pictures" / "wide.png", "--model", version, "--json")
    assert json.loads(out)["model"]["round"] == 2


def test_a_broken_picture_is_one_line_and_the_others_are_predicted(board, capsys):
    pictures = board / "broken.png", board / "pictures" / "wide.png", board / "gone.png"
    code, out, err = said(capsys, "predict", *pictures, "--model", board / "state")
    assert code == 1 and len(out.splitlines()) == 1
    first, second = err.splitlines()
    assert first.startswith(f"protofleet: {board}/broken.png cannot be read (")
    assert second == f"protofleet: there is no picture {board}/gone.png; is its name right?"


def test_each_mistake_is_one_line_with_the_way_out(board, capsys, monkeypatch):
    picture, state = board / "pictures" / "wide.png", board / "state"
    for words, problem in (
        ((), "name pictures, or say --watch FOLDER"),
        ((picture, "--watch", board), "name pictures, or say --watch FOLDER"),
        (("--watch", board / "gone"), f"there is no folder {board}/gone to watch"),
        ((board / "empty", "--model", state), f"there is no picture in the folder {board}/empty"),
        (
            (state, "--model", state),
            f"no picture right in the folder {state}, and those in it are not looked into: name {state}/models",
        ),
        ((picture, "--model", board / "gone"), f"there is no folder {board}/gone"),
        ((picture, "--model", board / "empty"), f"there is no version of a model in {board}/empty"),
        ((picture, "--model", state, "--onnx"), "set models.template on the device, or leave --onnx out"),
    ):
        code, _, err = said(capsys, "predict", *words)
        assert code == 2 and problem in err and len(err.splitlines()) == 1, err
    version = state / "models" / "v000001"
    (version / "model.onnx").write_bytes(b"no model")
    words = ("predict", picture, "--onnx", "--model", version)
    assert "the card names no file model.onnx; export again, with that format" in said(capsys, *words)[2]
    card = json.loads((version / "card.json").read_text())
    card["files"]["model.onnx"] = sha256_of_file(version / "model.onnx")
    (version / "card.json").write_text(json.dumps(card))
    code, _, err = said(capsys, *words)
    assert code == 2 and "model.onnx cannot be used: " in err
    (version / "model.onnx").write_bytes(
        b"no mode1"
    )  # a flipped bit: it might still be run, and answer otherwise
    code, out, err = said(capsys, *words)
    assert (code, out) == (2, "") and err.startswith(
        f"protofleet: {version}: model.onnx is not that of the card: its SHA-256 is "
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert said(capsys, *words)[2] == (
        "protofleet: --onnx takes the package onnxruntime: pip install onnxruntime\n"
    )


def test_a_model_with_other_numbers_than_its_card_says_is_not_used(board, capsys, tmp_path):
    for name in ("card.json", "model.safetensors"):
        content = (board / "state" / "models" / "v000002" / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-1] + b"\x01" if name != "card.json" else content)
    code, _, err = said(capsys, "predict", board / "pictures" / "wide.png", "--model", tmp_path)
    assert code == 2 and "the tensors are not those of the card" in err and len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_watched_folder_has_a_line_for_each_new_picture_once_it_is_whole(board, tmp_path):
    folder, picture = tmp_path / "in", (board / "pictures" / "wide.png").read_bytes()
    folder.mkdir()
    (folder / "old.png").write_bytes(picture)
    words = ["predict", "--watch", str(folder), "--model", str(board / "state"), "--json"]
    watching = subprocess.Popen(
        [sys.executable, "-m", "protofleet", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert watching.stderr.readline() == f"watching {folder}; Ctrl-C ends it\n"
        with (folder / "slow.png").open("wb") as file:  # half of it is there for three looks
            for begin in range(0, len(picture), 1 + len(picture) // 6):
                file.write(picture[begin : begin + 1 + len(picture) // 6])
                file.flush()
                time.sleep(0.3)  # a copy takes its time
        (folder / "note.txt").write_text("no picture")
        (folder / ".hidden.png").write_bytes(picture)
        row = json.loads(watching.stdout.readline())
        assert (row["image"], row["model"]) == (str(folder / "slow.png"), "v000003")
        (folder / "broken.png").write_bytes(b"no picture")
        assert watching.stderr.readline().startswith(f"protofleet: {folder}/broken.png cannot be read")
    finally:
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=30)
    assert (out, err, watching.returncode) == ("", "1 picture predicted\n", 0)
