"""Two boards serve their models during a run, and another program reads only complete models."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from types import SimpleNamespace

import pytest

from protofleet.edge_client.serving.versions import ModelVersions
from protofleet.edge_client.trainer.slots import Slots
from protofleet.federation.brokers.local import LocalBroker
from protofleet.federation.brokers.ports import free_port
from protofleet.lab.local.experiment import read_experiment
from protofleet.lab.local.run import RunningBroker, enrol_all, write_settings
from protofleet.methods.nets.weights_file import read_weights
from protofleet.methods.served.card import read_card
from protofleet.methods.served.rebuild import rebuild
from protofleet.protocol.settings.reader import read_toml, write_toml
from tests.lab.local.test_run import ROOT, furnished

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
HOOK = "import os, sys; open(sys.argv[1], 'a').write(os.environ['PROTOFLEET_MODEL'] + chr(10))"


def start(command, *paths):
    return subprocess.Popen(
        [sys.executable, "-m", "protofleet", command, *map(str, paths)], stdout=subprocess.DEVNULL,
        stderr=paths[0].with_suffix(".err").open("a"), env=ENVIRONMENT,
    )  # fmt: skip


def protofleet(*words):
    done = subprocess.run(
        [sys.executable, "-m", "protofleet", *map(str, words)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


class Reader(threading.Thread):
    """Another program on the board: it reads a link once, and then the folder that the link names."""

    def __init__(self, folders):
        super().__init__(daemon=True)
        self.folders, self.stopped, self.problems, self.seen, self.reads = folders, False, [], set(), 0

    def run(self):
        while not self.stopped:
            for folder in self.folders:
                if (folder / "current").is_symlink():
                    self.read(folder)
            time.sleep(0.002)  # This leaves the two cores to the devices.

    def read(self, folder):
        version = (folder / "current").resolve()
        try:
            card = json.loads((version / "card.json").read_bytes())
            found = hashlib.sha256((version / "model.safetensors").read_bytes()).hexdigest()
            if found != card["files"]["model.safetensors"]:
                self.problems.append(f"{version} is not of its card")
        except (OSError, ValueError) as error:
            self.problems.append(repr(error))
        self.reads += 1
        self.seen.add(str(version))


def numbers(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    place = furnished(tmp_path_factory.mktemp("served"))
    runs, port = place / "runs", free_port()
    experiment = read_experiment(
        place / "small.toml", ["devices.count=3", "rounds=100000", "method.name=fedavg"]
    )
    boards = [runs / "small" / "devices" / name for name in experiment.shards]
    told = [board / "told.txt" for board in boards]
    with LocalBroker(place / "broker", "mosquitto") as broker:
        enrol_all(experiment, runs / "small")
        write_settings(experiment, RunningBroker(broker.address, "a real one"), runs, (), Slots())
        files = [board / "device.toml" for board in boards]
        own = ({"trainer": "child"}, {"metrics_port": port}, {})
        for file, changes, serve, hook in zip(files, own, ("global", "personal", "off"), told, strict=True):
            command = [sys.executable, "-c", HOOK, str(hook)]
            models = {"serve": serve, "keep": 2, "on_model": command}
            file.write_text(write_toml(read_toml(file) | changes | {"models": models}))
        started = [
            start("coordinator", runs / "small" / "coordinator.toml"),
            start("device", files[0]),
            start("device", *files[1:]),  # There are two in one process; one of them serves.
        ]
        models = [ModelVersions(board / "models") for board in boards[:2]]
        reader = Reader([one.folder for one in models])
        reader.start()
        try:
            # Each test may be the first one in its process.
            until(lambda: models[0].named("current") and models[1].named("previous"))
            yield SimpleNamespace(
                place=place, files=files, started=started, models=models, reader=reader, told=told, port=port,
            )  # fmt: skip
        finally:
            reader.stopped = True
            for process in started:
                process.kill()
                process.wait()


def current(models):
    return until(lambda: models.named("current"))


def test_both_boards_serve_during_a_run_and_a_kill_leaves_a_complete_version(served):
    first, second = served.models
    assert (current(first).kind, current(second).kind) == ("global", "personal")
    before = current(first)
    until(lambda: current(first).round > before.round + 1)
    served.started[1].send_signal(signal.SIGKILL)
    served.started[1].wait()
    left = current(first)
    card = read_card((left.folder / "card.json").read_bytes())
    rebuild(
        card, read_weights(left.folder / "model.safetensors")
    )  # The hash shows that the tensors belong to the card.
    served.started[1] = start("device", served.files[0])
    until(lambda: current(first).round > left.round)
    assert len(first.whole()) <= 2 + 4  # The newest two, and those that links name.


def test_predict_uses_the_version_that_is_served_now(served):
    image = served.place / "data" / "circle" / "0.png"
    until(lambda: current(served.models[1]).round > 3)
    found = json.loads(protofleet("predict", image, "--model", served.files[1].parent, "--json"))
    (prediction,) = found["predictions"]
    assert prediction["class"] == "circle" and found["model"]["round"] > 3
    assert sum(prediction["probabilities"].values()) == pytest.approx(1)


def test_a_rollback_stays_pinned_while_later_versions_are_written(served):
    models = served.models[1]
    said = protofleet("model", "rollback", served.files[1].parent)
    pinned = models.named("pinned")
    assert said.startswith(f"{models.folder / 'current'} is {pinned.name} of round {pinned.round} (pinned")
    until(lambda: models.whole()[-1].number > pinned.number + 2)
    assert current(models).number == pinned.number == models.named("pinned").number
    until(lambda: served.told[1].read_text().splitlines()[-1] == str(pinned.folder.resolve()))
    page = numbers(served.port)
    for which in ("current", "pinned"):
        assert page[f'protofleet_device_model_round{{which="{which}"}}'] == pinned.round
    assert page["protofleet_device_model_changes_total"] >= 3
    assert page["protofleet_device_model_hook_failures_total"] == 0
    assert page["protofleet_device_model_write_failures_total"] == 0
    protofleet("model", "unpin", served.files[1].parent)
    assert current(models).number > pinned.number


def test_a_reader_has_read_only_complete_models(served):
    until(lambda: served.reader.reads > 100 and len(served.reader.seen) >= 6)
    until(lambda: served.models[1].named("previous"))
    assert served.reader.problems == []
    assert not (served.files[2].parent / "models").exists()  # This device serves nothing.
    listed = json.loads(protofleet("model", "list", served.files[1].parent, "--json"))
    assert {"current", "champion", "previous"} <= {
        link for row in listed["versions"] for link in row["links"]
    }
    assert served.told[0].read_text() and all(process.poll() is None for process in served.started)
