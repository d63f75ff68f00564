"""Tests of docs/write-a-client.md and docs/examples/device.py.

The page shows the code of the example, and the example sends the bytes of the golden vectors.
"""

import importlib.util
import re
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protofleet.federation.enrol.local_federation import enrol_federation
from protofleet.protocol.security.enrolment import CURRENT, load_enrolled
from tests.protocol import hpke
from tests.protocol.golden.vectors import case_of, load, plain

DOCS = Path(__file__).parents[1] / "docs"
PAGE, CODE = (DOCS / "write-a-client.md").read_text(), (DOCS / "examples" / "device.py").read_text()
SHOWN = re.findall(
    r"^\*\*([^*\n]+)\*\*: [^\n]*\n(?:[^\n]+\n)?\n```hex\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
)
VECTORS = {v["name"]: v for v in load()["vectors"]}
LINES = re.compile(r"((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?")


def loaded():
    spec = importlib.util.spec_from_file_location("smallest_device", DOCS / "examples" / "device.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


device = loaded()


def keys_of(name, peer):
    """Return the keys that sign and seal the vectors, in the form that the example uses."""
    secret = {who: bytes.fromhex(key["private"]) for who, key in load()["keys"].items()}
    sign, receive = (kind.from_private_bytes(secret[name]) for kind in (Ed25519PrivateKey, X25519PrivateKey))
    others = (
        kind.from_private_bytes(secret[peer]).public_key() for kind in (Ed25519PrivateKey, X25519PrivateKey)
    )
    return device.Keys(Path(), "lab", name, sign, receive, *others, [b"", b"", b""], 0)


BOARD = keys_of("board-7", "coordinator")


def bytes_of(name):
    return bytes.fromhex(VECTORS[name]["hex"])


def header_of(frame):
    return device.Header._make(device.msgpack.unpackb(frame[5 : 5 + int.from_bytes(frame[3:5], "little")]))


@pytest.mark.parametrize(("name", "block"), SHOWN, ids=[name for name, _ in SHOWN])
def test_each_hex_block_of_the_page_equals_its_vector(name, block):
    shown = " ".join(LINES.fullmatch(line)[1] for line in block.splitlines())
    assert bytes.fromhex(shown) == bytes_of(name)


def test_each_hex_block_is_checked_and_each_code_block_is_in_the_example():
    assert len(SHOWN) == PAGE.count("```hex") >= 5
    quoted = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(quoted) >= 8 and all(lines in CODE for lines in quoted)


def test_the_page_has_the_parts_of_the_example_in_the_same_order():
    parts = re.findall(r"# -- (\d)\. ([A-Z][\w ]+)", CODE)
    assert re.findall(r"^## (\d)\. ([\w ]+)$", PAGE, re.MULTILINE) == [(n, words) for n, words in parts]


@pytest.mark.parametrize("name", ["will of a device", "state of a device, its birth"])
def test_the_example_writes_an_open_envelope_with_the_bytes_of_the_vector(name):
    frame = bytes_of(name)
    fields = device.msgpack.unpackb(frame[5 + int.from_bytes(frame[3:5], "little") : -64])
    assert device.envelope(header_of(frame), fields, BOARD) == frame


def test_the_example_opens_only_intact_messages_that_are_sealed_to_it():
    name = "task, whose broadcast follows, sealed"
    header, fields = device.opened("protofleet/1/lab/down/board-7", bytes_of(name), BOARD)
    message = case_of(VECTORS[name]).message
    assert (header.round, header.phase) == (message.round, message.phase)
    assert fields["follows"][0] == message.broadcast.object and fields["follows"][2] == message.broadcast.key
    assert [row[0] for row in fields["wants"]] == [row.name for row in message.wants]
    spoilt = bytearray(bytes_of(name))
    spoilt[-70] ^= 1
    for topic, frame in (("protofleet/1/lab/coord/state", bytes_of(name)), ("x/down/board-7", bytes(spoilt))):
        with pytest.raises(device.FAULTS):
            device.opened(topic, frame, BOARD)


def test_the_coordinator_opens_a_message_that_the_example_seals():
    fields = {"classes": 2, "examples": 7, "protocol": [1, 1]}
    header = header_of(bytes_of("hello, with what it can"))._replace(suite=1)
    frame = device.envelope(header, fields, BOARD)
    coordinator = keys_of("coordinator", "board-7")
    start = 5 + int.from_bytes(frame[3:5], "little")
    payload = device.HPKE.decrypt(
        frame[start:-64], coordinator.receive, info=b"protofleet/1 sealed\0" + frame[:start]
    )
    assert device.msgpack.unpackb(payload) == fields


class KnownSeal:
    """HPKE with the interface that the example uses, and with a given ephemeral key instead of a random one."""

    def __init__(self, ephemeral):
        self.ephemeral = X25519PrivateKey.from_private_bytes(ephemeral)

    def encrypt(self, payload, receive, info):
        return hpke.seal(payload, receive.public_bytes_raw(), info, ephemeral=self.ephemeral)


def test_the_example_seals_a_message_with_the_bytes_of_the_vector(monkeypatch):
    frame, seal = (
        bytes_of("hello, sealed with a known ephemeral key"),
        case_of(VECTORS["the seal of that hello"]),
    )
    monkeypatch.setattr(device, "HPKE", KnownSeal(seal.ephemeral))
    assert device.envelope(header_of(frame), device.msgpack.unpackb(seal.payload), BOARD) == frame


@pytest.mark.parametrize(
    "name", ["body of the broadcast", "body of the answer", "body of corners", "body of nothing"]
)
def test_the_example_reads_and_writes_bodies_with_the_bytes_of_the_vectors(name):
    case = case_of(VECTORS[name])
    found = device.decode(bytes_of(name))
    assert {n: (a.dtype, tuple(a.shape), tuple(a.numbers)) for n, a in found.items()} == {
        a.name: (a.dtype, a.shape, a.values) for a in case.arrays
    }
    body, parts = device.encode(found)
    assert body == bytes_of(name)
    assert [part for part in parts if part[1]] == [part for part in plain(case.parts) if part[1]]


@pytest.mark.parametrize("name", ["sealed block 0", "sealed block 1", "sealed block that follows"])
def test_the_example_seals_blocks_with_the_bytes_of_the_vectors(name):
    case = case_of(VECTORS[name])
    block = len(case.data)
    manifest = device.Manifest(case.object, 0, block, b"", [], case.key)
    assert device.block_frame(manifest, case.index, bytes(block * case.index) + case.data) == bytes_of(name)


def test_the_example_reads_the_keys_that_enrolment_writes(tmp_path):
    fleet = enrol_federation(tmp_path, "lab", ["board-7"])
    keys = device.read_keys(fleet.folder_of("board-7") / CURRENT)
    assert (keys.federation, keys.name) == ("lab", "board-7")
    theirs = device.read_record(fleet.folder_of("coordinator") / CURRENT / "identity.record")
    assert theirs[3] == keys.holders[2] == keys.coordinator_signs.public_bytes_raw()
    assert theirs[4] == keys.coordinator_receives.public_bytes_raw()
    found = load_enrolled(fleet.folder_of("board-7") / CURRENT, time.time())
    assert keys.holders[0] == found.record.serial.to_bytes(8, "little")
    assert keys.holders[1] == found.record.sign and keys.since == found.record.not_before


NOW, DAY, HOLDERS = 1_900_000_000, 86_400, [b"serial", b"my key", b"their key"]
RENEWED = [b"another", *HOLDERS[1:]]


@pytest.fixture
def memory_at(tmp_path, monkeypatch):
    """Return a function that opens the memory at a given clock time and writes it again, as each start does."""

    def start(now=NOW, holders=HOLDERS, since=NOW - 100 * DAY, **then):
        monkeypatch.setattr(device.time, "time", lambda: now)
        memory = device.Memory(tmp_path / "new" / "memory", holders, since)
        for name, value in then.items():
            setattr(memory, name, value)
        memory.write()
        return memory

    return start


def test_the_memory_has_its_values_after_a_restart(memory_at):
    answers = [device.Answer(b"q", 1, "train", b"base", b"body", [["control", 5]])]
    memory_at(boot=NOW, epoch=NOW - 5, sequence=3, run="spring", answers=answers)
    again = memory_at()
    assert (again.boot, again.epoch, again.sequence, again.run, again.answers) == (
        NOW, NOW - 5, 3, "spring", answers,
    )  # fmt: skip


def test_a_new_record_of_the_same_keys_changes_no_number_in_the_memory(memory_at):
    memory_at(boot=NOW, epoch=NOW - 5, sequence=3)
    again = memory_at(holders=RENEWED)
    assert (again.boot, again.epoch, again.sequence) == (NOW, NOW - 5, 3)


@pytest.mark.parametrize(("which", "kept"), [(1, (0, NOW - 5)), (2, (NOW, 0))])
def test_another_key_of_a_party_resets_its_number_in_the_memory(memory_at, which, kept):
    memory_at(boot=NOW, epoch=NOW - 5, sequence=3)
    again = memory_at(holders=[b"other" if i == which else key for i, key in enumerate(HOLDERS)])
    assert (again.boot, again.epoch) == kept


def test_an_epoch_far_in_the_future_is_reset_at_once_and_a_boot_at_a_renewal(memory_at):
    memory_at(boot=NOW + 3 * DAY, epoch=NOW + 3 * DAY)
    again = memory_at()
    assert (again.boot, again.epoch) == (NOW + 3 * DAY, 0)
    assert memory_at(holders=RENEWED).boot == 0


@pytest.mark.parametrize("slow", [NOW - 10 * DAY, 0])
def test_a_clock_that_goes_back_resets_nothing(memory_at, slow):
    memory_at(boot=NOW, epoch=NOW - 5)
    for now in (slow, slow, NOW):
        found = memory_at(now)
        assert (found.boot, found.epoch) == (NOW, NOW - 5) and not found.ahead(NOW + DAY // 2)


def test_a_renewal_resets_the_numbers_of_a_clock_that_was_ahead(memory_at):
    memory_at(NOW + 30 * DAY, boot=NOW + 30 * DAY, epoch=NOW + 30 * DAY)
    again = memory_at(NOW, RENEWED)
    assert (again.boot, again.epoch) == (0, 0)


def test_the_example_refuses_an_epoch_of_more_than_a_day_in_the_future(tmp_path, memory_at):
    memory_at(boot=NOW)
    keys = BOARD._replace(holders=HOLDERS, since=NOW - 100 * DAY)
    listener = device.Device(keys, tmp_path / "new", 2, 7)
    assert listener.is_new(NOW + DAY, 1)
    with pytest.raises(device.FAULTS):
        listener.is_new(NOW + DAY + 1, 1)
    assert listener.memory.epoch == NOW + DAY
