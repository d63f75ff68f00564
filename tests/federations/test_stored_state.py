"""A file that an earlier process wrote and that is unreadable now leads to an error of one line, with the fix."""

import json
import sqlite3

import numpy as np
import pytest

from protofleet.coordinator.spool.spool import Spool
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import FORMAT, Answer, checksum
from protofleet.methods.contract.base import Member
from protofleet.protocol.storage.store import DamagedError
from protofleet.runtime.command.exit_codes import exit_code

HASH = "ab" * 32


def answer_of(state, round=1):
    name = state.store.put({"weights.w": np.full(3, round, np.float32)}).object.hex()
    return Answer(f"{round:064x}", round, "train", HASH, name, 5, {"loss.test.global": float("nan")})


@pytest.fixture
def device(tmp_path):
    """Return the folder of a device that has answered once and has no older state to go back to."""
    state = DeviceState(tmp_path, durable=False)
    state.boot(7)
    state.begin("spring", HASH)
    state.save_answer(answer_of(state), {"w": np.ones(3, np.float32)})
    for name in ("device.previous.json", "device.copy.json", "device.copy-2.json"):
        (tmp_path / name).unlink()
    return tmp_path


def test_a_device_reads_the_state_that_it_has_written(device):
    state = DeviceState(device)
    book = state.saved
    assert (state.file.boot, book.run, book.plan, book.broadcast) == (7, "spring", HASH, "")
    assert [(a.round, a.examples) for a in book.answers] == [(1, 5)]


def test_a_device_can_restart_after_a_renewal_has_reset_a_boot_in_the_future(tmp_path):
    ahead, now, keys = 1_900_000_000, 1_800_000_000, "0" * 32
    state = DeviceState(tmp_path, durable=False)
    assert state.boot(ahead, f"1:{keys}") == ahead
    state.begin("spring", HASH)
    for round in (1, 2):
        state.save_answer(answer_of(state, round), {"w": np.full(3, round, np.float32)})
    assert DeviceState(tmp_path, durable=False).boot(now, f"2:{keys}") == now, (
        "the boot was reset by the renewal"
    )
    for later in (1, 2):
        assert DeviceState(tmp_path, durable=False).boot(now, f"2:{keys}") == now + later
    assert [a.round for a in DeviceState(tmp_path, durable=False).saved.answers] == [2]


def test_a_device_json_that_is_older_than_previous_json_is_refused(tmp_path):
    state = DeviceState(tmp_path, durable=False)
    state.boot(7)
    state.begin("spring", HASH)
    first = (tmp_path / "device.json").read_bytes()
    state.boot(8)
    for round in (1, 2):
        state.save_answer(answer_of(state, round), {"w": np.full(3, round, np.float32)})
    (tmp_path / "device.json").write_bytes(first)
    for copy in ("device.copy.json", "device.copy-2.json"):
        (tmp_path / copy).write_bytes(first)
    with pytest.raises(DamagedError, match=r"device.json is older than .*previous.json; put it back"):
        DeviceState(tmp_path, durable=False)


def sealed_with(book, times):
    (run,) = book["runs"]
    table = {**book, "runs": [{**run, "answers": run["answers"] * times}]}
    return sealed(table)


def sealed(table):
    return {"format": FORMAT, "seal": checksum(table), "book": table}


def runs_without_end(book):
    return {**book, "runs": [{**book["runs"][0], "run": f"run-{i}"} for i in range(9)]}


DAMAGE = {
    "half of it": lambda text: text[: len(text) // 2],
    "nothing": lambda text: "",
    "another JSON value": lambda text: "[]",
    "a number": lambda text: text.replace('"boot": 7', '"boot": 8'),
    "a letter": lambda text: text.replace("spring", "spruce"),
    "nested too deep": lambda text: "[" * 100_000,
    "a negative boot": lambda text: text.replace('"boot": 7', '"boot": -7'),
    "a word for a number": lambda text: text.replace('"boot": 7', '"boot": "7"'),
    "a path for a hash": lambda text: text.replace(HASH, "../../etc/passwd"),
    "an additional key": lambda text: text.replace('"boot"', '"more": 1, "boot"'),
    "too many runs": lambda text: json.dumps(sealed(runs_without_end(json.loads(text)["book"]))),
    "a run twice": lambda text: json.dumps(
        sealed({**(b := json.loads(text)["book"]), "runs": b["runs"] * 2})
    ),
    "too many answers": lambda text: json.dumps(sealed_with(json.loads(text)["book"], 50)),
    "no UTF-8": lambda text: text.replace("spring", "\udcff"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_device_json_is_refused_in_one_line(device, damage):
    path = device / "device.json"
    path.write_text(damage(path.read_text()), errors="surrogateescape")
    with pytest.raises(DamagedError, match="device.json is damaged.*remove") as error:
        DeviceState(device)
    words = str(error.value).replace(str(device), "HERE")  # The length of the path does not count.
    assert "\n" not in words and len(words) < 300
    assert exit_code(error.value) == 1


@pytest.mark.parametrize("left", [None, b"", b"half of it"])
@pytest.mark.parametrize("which", ["half", "answer"])
def test_a_missing_or_damaged_object_is_refused_in_one_line(device, which, left):
    book = DeviceState(device).saved
    path = device / "objects" / f"{book.half if which == 'half' else book.answers[0].object}.body"
    path.unlink() if left is None else path.write_bytes(left)
    with pytest.raises(DamagedError, match=r"body is gone or damaged.*; put it back .* start anew") as error:
        DeviceState(device)
    assert exit_code(error.value) == 1


def test_a_device_with_objects_and_without_device_json_does_not_start(device):
    (device / "device.json").unlink()
    with pytest.raises(DamagedError, match=r"device.json is gone; .*put it back .* start anew"):
        DeviceState(device)


@pytest.fixture
def coordinator(tmp_path):
    spool = Spool(tmp_path, durable=False)
    spool.start_run("spring", "{}", 1)
    spool.save(1, 0, ["a", "b"], {"a": Member("a", 5, (2, 3))}, {})
    spool.close()
    (tmp_path / "spool.copy.sqlite").unlink()
    return tmp_path


def test_a_coordinator_reads_the_state_that_it_has_written(coordinator):
    past, members = Spool(coordinator).recover()
    assert (past.round, past.cohort, members) == (1, ("a", "b"), {"a": Member("a", 5, (2, 3))})


@pytest.mark.parametrize(
    "change",
    ["cohort = 'a'", "cohort = '{}'", "cohort = '[1]'", "members = '[[1, 2, 3]]'", "members = '{}'", "members = NULL",
     "members = '[[\"a\", 5, [\"x\"]]]'", "cohort = X'ff'"],
)  # fmt: skip
def test_a_damaged_row_of_the_index_is_refused_in_one_line(coordinator, change):
    with sqlite3.connect(coordinator / "spool.sqlite") as db:
        db.execute(f"UPDATE checkpoint SET {change}")
    with pytest.raises(DamagedError, match="spool.sqlite is damaged.*protofleet go-on") as error:
        Spool(coordinator).recover()
    assert "\n" not in str(error.value) and exit_code(error.value) == 1


def test_a_spool_file_that_is_no_database_is_refused_in_one_line(coordinator):
    (coordinator / "spool.sqlite").write_bytes(b"no database at all" * 500)
    with pytest.raises(DamagedError, match="spool.sqlite is damaged"):
        Spool(coordinator)
