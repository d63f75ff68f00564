"""Tests of `protofleet model` and `protofleet predict` as a user runs them, and of the message for each mistake."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protofleet.cli.main import main
from protofleet.cli.predict import ChosenModel, watch
from protofleet.edge_client.serving.publisher import ModelOrigin, ModelPublisher
from protofleet.edge_client.serving.settings import ModelSettings
from protofleet.edge_client.trainer.job import LocalJob
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.nets.weights_file import sha256_of_file
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.names import EVALUATE
from tests.support.small_federation import NAMES, plan, shard

BOARD = re.compile(r"^```sh board\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """Return a device's folder with three versions of the model, and pictures that do not have the model's size."""
    folder = tmp_path_factory.mktemp("board")
    published = ModelPublisher(
        ModelSettings(), folder / "state", ModelOrigin("owl", None), Disk(durable=False)
    )
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


def test_model_list_prints_the_versions_with_their_links(board, capsys):
    code, out, _ = said(capsys, "model", "list", board / "state")
    lines = out.splitlines()
    assert code == 0 and [line.split()[0] for line in lines] == ["v000001", "v000002", "v000003"]
    assert "global    round 3 " in lines[2] and lines[2].endswith("current")
    assert lines[1].endswith("previous") and "champion" in lines[0]
    code, out, _ = said(capsys, "model", "list", board / "state" / "models", "--json")
    rows = json.loads(out)["versions"]
    assert [row["round"] for row in rows] == [1, 2, 3] and rows[2]["links"] == ["current"]


def test_model_list_without_a_folder_uses_the_models_of_the_current_folder(board, capsys, monkeypatch):
    monkeypatch.chdir(board)
    assert said(capsys, "model", "list")[0] == 0
    monkeypatch.chdir(board / "empty")
    code, _, err = said(capsys, "model", "list")
    assert code == 2 and err.startswith("protofleet: there is no version of a model in models, state, ")


def test_a_version_is_pinned_unpinned_and_rolled_back(board, capsys):
    state = board / "state"
    assert said(capsys, "model", "pin", "v000001", state)[1].startswith(
        f"{state}/models/current is v000001 of round 1 (pinned"
    )
    code, _, err = said(capsys, "model", "pin", "9", state)
    assert (code, err) == (
        2, f"protofleet: there is no version v000009 in {state}/models; "
        "the versions are: v000001, v000002, v000003\n",
    )  # fmt: skip
    code, _, err = said(capsys, "model", "pin", "newest", state)
    assert code == 2 and "it must be a version such as v000017" in err
    assert "is v000003 of round 3 (the newest" in said(capsys, "model", "unpin", state)[1]
    assert said(capsys, "model", "unpin", state)[0] == 2
    assert "is v000001 of round 1 (pinned" in said(capsys, "model", "rollback", state)[1]
    assert "is v000003" in said(capsys, "model", "rollback", state)[1]
    said(capsys, "model", "unpin", state)


def test_all_board_commands_of_the_page_succeed(board, capsys, monkeypatch):
    monkeypatch.chdir(board)
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    commands = [line for block in BOARD.findall(page) for line in block.splitlines()]
    assert len(commands) == 7
    for command in commands:
        code, out, err = said(capsys, *command.split()[1:])
        assert code == 0 and out and not err, (command, err)


def test_a_pipe_and_a_postscript_file_with_names_of_pictures_give_one_line_each(
    board, tmp_path, capsys, monkeypatch
):
    os.mkfifo(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    code, out, err = said(capsys, "predict", tmp_path, "--model", board / "state")
    assert (code, out) == (1, "") and [line.count("cannot be read") for line in err.splitlines()] == [1, 1]
    assert "a.png cannot be read (it is not a regular file)" in err and not (tmp_path / "ran").exists()


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


def test_a_broken_picture_gives_one_line_and_the_others_are_predicted(board, capsys):
    pictures = board / "broken.png", board / "pictures" / "wide.png", board / "gone.png"
    code, out, err = said(capsys, "predict", *pictures, "--model", board / "state")
    assert code == 1 and len(out.splitlines()) == 1
    first, second = err.splitlines()
    assert first.startswith(f"protofleet: {board}/broken.png cannot be read (")
    assert second == f"protofleet: there is no picture {board}/gone.png; is its name right?"


def test_each_mistake_gives_one_line_with_a_fix(board, capsys, monkeypatch):
    picture, state = board / "pictures" / "wide.png", board / "state"
    for words, problem in (
        ((), "name pictures, or use --watch FOLDER"),
        ((picture, "--watch", board), "name pictures, or use --watch FOLDER"),
        (("--watch", board / "gone"), f"there is no folder {board}/gone to watch"),
        ((board / "empty", "--model", state), f"there is no picture in the folder {board}/empty"),
        (
            (state, "--model", state),
            f"no picture in the folder {state} itself, and its subfolders are not searched: name {state}/models",
        ),
        ((picture, "--model", board / "gone"), f"there is no folder {board}/gone"),
        ((picture, "--model", board / "empty"), f"there is no version of a model in {board}/empty"),
        ((picture, "--model", state, "--onnx"), "set models.template on the device, or do not use --onnx"),
    ):
        code, _, err = said(capsys, "predict", *words)
        assert code == 2 and problem in err and len(err.splitlines()) == 1, err
    version = state / "models" / "v000001"
    (version / "model.onnx").write_bytes(b"no model")
    words = ("predict", picture, "--onnx", "--model", version)
    assert (
        "the card names no file model.onnx; export the model again in the format of this file"
        in said(capsys, *words)[2]
    )
    card = json.loads((version / "card.json").read_text())
    card["files"]["model.onnx"] = sha256_of_file(version / "model.onnx")
    (version / "card.json").write_text(json.dumps(card))
    code, _, err = said(capsys, *words)
    assert code == 2 and "model.onnx cannot be used: " in err
    (version / "model.onnx").write_bytes(
        b"no mode1"
    )  # a flipped bit: the model might still run and give other answers
    code, out, err = said(capsys, *words)
    assert (code, out) == (2, "") and err.startswith(
        f"protofleet: {version}: model.onnx is not the file that the card names: its SHA-256 is "
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert said(capsys, *words)[2] == (
        "protofleet: --onnx needs the package onnxruntime: pip install onnxruntime\n"
    )


def test_a_model_with_other_tensors_than_its_card_names_is_refused(board, capsys, tmp_path):
    for name in ("card.json", "model.safetensors"):
        content = (board / "state" / "models" / "v000002" / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-1] + b"\x01" if name != "card.json" else content)
    code, _, err = said(capsys, "predict", board / "pictures" / "wide.png", "--model", tmp_path)
    assert code == 2 and "the tensors are not those of the card" in err and len(err.splitlines()) == 1


class Spool:
    """A watched folder in simulated time; the test gives the changes that happen before each look."""

    def __init__(self, board, folder, capsys):
        folder.mkdir(exist_ok=True)
        self.folder, self.capsys, self.now = folder, capsys, 0.0
        self.picture = (board / "pictures" / "wide.png").read_bytes()
        self.chosen = ChosenModel(board / "state", onnx=False)

    def write(self, content, name="new.png"):
        """Write a file in place, as `>` and `>>` do."""
        (self.folder / name).open("r+b" if (self.folder / name).exists() else "wb").write(content)

    def watched(self, *steps, looks=20):
        coming = iter([*steps, *[lambda: None] * looks])

        def pause(seconds):
            self.now += seconds
            if (step := next(coming, None)) is None:
                raise KeyboardInterrupt
            step()

        options = argparse.Namespace(watch=self.folder, json=False)
        assert watch(options, self.chosen, pause, lambda: self.now) == 0
        out = self.capsys.readouterr()
        names = [Path(line.split("  ")[0]).name for line in out.out.splitlines()]
        return names, out.err.splitlines()[1:]


@pytest.fixture
def spool(board, tmp_path, capsys):
    return Spool(board, tmp_path / "in", capsys)


def test_a_half_written_picture_is_predicted_once_when_it_is_complete(spool):
    half = spool.picture[: len(spool.picture) // 2]
    stall = [lambda: None] * 8  # eight looks, which are four seconds
    found = spool.watched(lambda: spool.write(half), *stall, lambda: spool.write(spool.picture))
    assert found == (["new.png"], ["1 picture predicted"])


def test_a_picture_that_is_completed_while_it_is_read_is_predicted_once(spool):
    """The picture changes after the check that found it unchanged, and before it is read."""
    now, begun = spool.chosen.now, len(spool.picture) // 2

    def finish_and_open():
        if (spool.folder / "new.png").exists():
            spool.chosen.now = now
            spool.write(spool.picture)
        return now()

    spool.chosen.now = finish_and_open
    found = spool.watched(lambda: spool.write(spool.picture[:begun]))
    assert found == (["new.png"], ["1 picture predicted"])


def test_a_picture_in_a_preallocated_file_with_an_old_time_is_predicted(spool):
    """A program writes into a file that already has its full length, and then sets the old time of the file again."""

    def write(content):
        spool.write(content)
        os.utime(spool.folder / "new.png", ns=(0, 0))

    whole = spool.picture
    zeros = bytes(len(whole))
    found = spool.watched(lambda: write(zeros), *[lambda: None] * 12, lambda: write(whole))
    assert found[0] == ["new.png"] and len(found[1]) == 2 and "new.png cannot be read" in found[1][0]


def test_a_broken_picture_is_reported_once_and_predicted_when_it_is_repaired(spool):
    looks = [lambda: None] * 15
    names, said = spool.watched(lambda: spool.write(b"no"), *looks, lambda: spool.write(spool.picture))
    assert (
        names == ["new.png"] and "new.png cannot be read" in said[0] and said[1:] == ["1 picture predicted"]
    )


def test_a_changed_mode_of_a_picture_gives_no_second_line(spool):
    def lock():
        (spool.folder / "new.png").chmod(0o400)

    found = spool.watched(lambda: spool.write(spool.picture), *[lambda: None] * 3, lock)
    assert found == (["new.png"], ["1 picture predicted"])


def test_an_interrupt_names_the_pictures_that_still_wait(spool):
    found = spool.watched(lambda: spool.write(spool.picture), looks=0)
    assert found == ([], ["0 pictures predicted, 1 not yet (new.png)"])


@pytest.mark.slow
def test_watch_prints_one_line_for_each_new_picture_when_it_is_complete(board, tmp_path):
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
        with (folder / "slow.png").open("wb") as file:  # half of the file is there for three looks
            for half in (picture[: len(picture) // 2], picture[len(picture) // 2 :]):
                file.write(half)
                file.flush()
                time.sleep(1.6)  # a copy takes some time
        (folder / "note.txt").write_text("no picture")
        (folder / ".hidden.png").write_bytes(picture)
        row = json.loads(watching.stdout.readline())
        assert (row["image"], row["model"]) == (str(folder / "slow.png"), "v000003")
    finally:
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=30)
    assert (out, err, watching.returncode) == ("", "1 picture predicted\n", 0)
