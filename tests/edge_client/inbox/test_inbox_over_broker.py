"""A real device with an inbox is killed in the middle of training, and a copy of its folder checks its bits."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.inbox.growing import growing_data
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import read_state_file
from protofleet.edge_client.trainer.local import LocalTrainer
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.settings.reader import decode, encode, read_toml, write_toml
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.wire.names import COORDINATOR
from tests.conftest import missing
from tests.support.secured_broker import start_enrolled

pytestmark = [pytest.mark.broker, pytest.mark.slow]
ROUNDS, WIDTH = 12, 6
HYPER = {
    "name": "fedavg",
    "epochs": 60,
    "batch": 8,
    "lr": 0.01,
}  # a second per round if no other program computes
SECONDS = 60.0
BROKEN = "a/broken.npy is skipped: it is not a NumPy array"


class Story:
    """A run of a device with two classes on its disk, whose inbox is filled while it trains."""

    def __init__(self, folder: Path, trainer: str) -> None:
        self.folder, self.trainer = folder, trainer
        self.inbox, self.state = folder / "inbox", folder / "state"
        rng = np.random.default_rng(0)
        y = np.arange(60) % 2
        x = rng.normal(size=(60, WIDTH)).astype(np.float32) + y[:, None].astype(np.float32)
        np.savez(folder / "data.npz", x=x, y=np.array(["a", "b"])[y])
        for name in "ab":
            (self.inbox / name).mkdir(parents=True)
        self.fill(8)
        self.enrolled = start_enrolled(folder / "enrolled", "watch")
        self.processes: list[subprocess.Popen] = []

    def fill(self, count: int, first: int = 0) -> list[Path]:
        """Put series of the two classes in turn into the inbox, with a file time of a minute ago."""
        made = []
        for i in range(first, first + count):
            path = self.inbox / "ab"[i % 2] / f"{i}.npy"
            values = np.random.default_rng(100 + i).normal(size=WIDTH) + i % 2
            self.put(path, partial(np.save, arr=values))
            made.append(path)
        return made

    @staticmethod
    def put(path: Path, write: Callable[[IO[bytes]], object]) -> None:
        """Put a file in place that a device uses at its next look, because its time is a minute ago."""
        beside = path.with_suffix(".tmp")
        with beside.open("wb") as file:
            write(file)
        os.utime(beside, (time.time() - 60,) * 2)
        beside.rename(path)

    def settings(self) -> DeviceSettings:
        table = {
            "name": "watch", "federation": self.enrolled.federation, "folder": str(self.state), "threads": 1,
            "enrolled": str(self.enrolled.fleet.folder_of("watch")), "stays": False, "compute": "cpu",
            "trainer": self.trainer, "broker": encode(self.enrolled.address("watch")),
            "data": {
                "source": "arrays", "root": str(self.folder), "shape": [WIDTH], "inbox": str(self.inbox),
                "inbox_seconds": 0.5,
                "validation": 0.1,
            },
        }  # fmt: skip
        return decode(DeviceSettings, table)

    def start(self, what: str) -> subprocess.Popen:
        if what == "device":
            table = encode(self.settings())
        else:
            table = {
                "name": "r", "rounds": ROUNDS, "classes": 2, "method": HYPER, "network": {"name": "mlp"},
                "shape": [WIDTH], "codec": "off",
                "federation": self.enrolled.federation, "folder": str(self.folder / "runs"),
                "enrolled": str(self.enrolled.fleet.folder_of(COORDINATOR)),
                "devices": str(self.enrolled.fleet.root / "records"),
                "broker": encode(self.enrolled.address(COORDINATOR)),
                "policy": {"quorum": 1, "settle_seconds": 0.2, "straggler_factor": 0.0, "patience_seconds": 60.0},
            }  # fmt: skip
        path = self.folder / f"{what}.toml"
        path.write_text(write_toml(table))
        log = (self.folder / f"{what}.log").open("a")
        command = [sys.executable, "-P", "-m", "protofleet", what, str(path)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        self.processes.append(process)
        return process

    def log(self, what: str = "device") -> str:
        return (self.folder / f"{what}.log").read_text()

    def saved(self):
        try:
            return (*read_state_file((self.state / "device.json").read_bytes()).runs, None)[0]
        except (FileNotFoundError, DamagedError):
            return None

    def until(self, true, what: str):
        deadline = time.monotonic() + SECONDS
        while not (found := true()):
            assert time.monotonic() < deadline, (
                f"{what}\n{self.log()[-3000:]}\n{self.log('coordinator')[-2000:]}"
            )
            time.sleep(0.02)
        return found

    def rounds(self) -> list[dict]:
        found = list((self.folder / "runs").rglob("rounds.jsonl"))
        return [json.loads(line) for line in found[0].read_text().splitlines()] if found else []

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.enrolled.broker.stop()


def answer_of_round(story: Story, number: int):
    saved = story.saved()
    return next((a for a in saved.answers if a.round == number), None) if saved else None


@pytest.fixture(scope="module", params=["inside", "child"])
def story(request, tmp_path_factory):
    """Run a device whose inbox is filled in round 2, and which is killed in a later round.

    Before the device starts again, its inbox gets more files and loses one.
    """
    try:
        made = Story(tmp_path_factory.mktemp("story"), request.param)
    except BrokerError as error:
        missing(error)
    try:
        made.start("coordinator")
        device = made.start("device")
        made.until(lambda: (s := made.saved()) and s.inputs_round >= 2, "no second round has begun")
        made.later = made.fill(6, first=8)
        (made.inbox / "c").mkdir()
        made.put(made.inbox / "a" / "broken.npy", lambda file: file.write(b"nothing"))
        made.until(lambda: "from the next round on" in made.log(), "it has not found the new samples")
        made.until(lambda: BROKEN in made.log(), "it has not found the file that it cannot use")
        seen = made.saved().inputs_round

        def in_a_later_round():
            saved = made.saved()
            return (
                saved
                and saved.inputs_round > seen
                and not any(a.round == saved.inputs_round for a in saved.answers)
            )

        made.until(in_a_later_round, "no round has begun after it")
        device.send_signal(signal.SIGKILL)
        device.wait()
        made.killed = made.saved()
        made.copy = made.folder / "copy"
        shutil.copytree(made.state, made.copy)
        made.later[0].unlink()
        made.fill(5, first=14)
        made.start("device")
        number = made.killed.inputs_round
        made.answer = made.until(lambda: answer_of_round(made, number), "the round was not answered again")
        made.until(lambda: made.processes[0].poll() is not None, "the run has not ended")
        yield made
    finally:
        made.close()


def test_the_device_was_killed_in_a_round_with_a_fixed_sample_list_and_no_update(story):
    assert story.killed.inputs and story.killed.inputs_round > 1
    assert story.killed.inputs_round not in {answer.round for answer in story.killed.answers}


def test_a_killed_device_computes_its_update_from_the_sample_list_of_its_round(story):
    """The expected bits come from a copy of its folder, while the inbox has other files than the round had."""
    settings = story.settings()
    settings = decode(DeviceSettings, {**encode(settings), "folder": str(story.copy), "trainer": "inside"})
    state = DeviceState(story.copy, durable=False)
    trainer = LocalTrainer(settings)
    growing = growing_data(trainer, settings.data, state)
    table = read_toml(story.folder / "coordinator.toml")
    hyper = {key: value for key, value in HYPER.items() if key != "name"}
    plan = Plan("fedavg", 2, ROUNDS, network=decode_network(table), hyper=hyper, shape=(WIDTH,))
    assert plan.digest.hex() == state.saved.plan
    job = growing.start(plan)
    if (half := state.half()) is not None:
        job.restore(half)
    answer = story.answer
    received = state.store.load(bytes.fromhex(answer.base))
    payload, _ = job.run(answer.phase, answer.round, received)
    assert state.store.put(payload).object.hex() == answer.object
    assert answer.examples == len(growing.train.y)
    grown = growing.with_labels(growing.announced)
    assert len(grown.train.y) != answer.examples, (
        "the inbox now has other samples, and the round used none of them"
    )


def decode_network(table):
    return decode(Network, table["network"])


def test_new_samples_count_from_a_later_round_and_are_announced_between_rounds(story):
    text = story.log()
    assert "inbox: the list of samples changes from the next round on (a +3, b +3); 14 samples in all" in text
    members = [
        line for line in story.log("coordinator").splitlines() if "examples, its device has stated" in line
    ]
    assert members == [], "no update used more examples than its hello had stated"
    rounds = story.rounds()
    assert [record["round"] for record in rounds][:ROUNDS] == list(range(1, ROUNDS + 1))


def test_each_process_logs_an_unusable_file_once_and_the_device_continues(story):
    text = story.log()
    # The second process may be at the end of the run before it has looked.
    assert 1 <= text.count(BROKEN) <= 2, "of two processes, once each"
    assert 1 <= text.count("c is no class of this run (a, b); skipped") <= 2
    assert "Traceback" not in text and "Traceback" not in story.log("coordinator")


def test_samples_that_no_list_contains_are_removed(story):
    assert len(list((story.state / "inbox").iterdir())) <= 8 + 6 + 5
