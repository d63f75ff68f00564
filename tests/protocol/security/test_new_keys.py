"""Tests of each key that minor version 1 has added, with a reader of version 1.0, which knows none of them.

The reader is written from the earlier docs/protocol.md: it is strict about the keys that it knows and ignores all
others.
"""

import re
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from protofleet.protocol.wire import codec
from protofleet.protocol.wire.messages import (
    About,
    ArraySpec,
    BlockRequest,
    Delta,
    Hello,
    IndirectManifest,
    Manifest,
    Refusal,
    RoundStatus,
    State,
    Task,
    Update,
    Welcome,
)

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
ANY = (int, float)
KNOWN = {  # Kind -> key -> (its type, whether it is required).
    "state": {"online": (bool, True), "reason": (str, False)},
    "hello": {
        "classes": (int, True), "examples": (int, True), "domain": (str, False), "software": (str, False),
        "protocol": (list, True), "plan": (bytes, False), "counts": (list, False), "holds": (bytes, False),
    },
    "welcome": {"plan": (bytes, True)},
    "task": {"broadcast": ((list, type(None)), True), "seconds": (ANY, True)},
    "want": {"object": (bytes, True), "ranges": (list, True), "again": (bool, False)},
    "update": {"examples": (int, True), "metrics": (dict, True), "arrays": ((bytes, list), True)},
    "receipt": {"verdict": (str, True), "reason": (str, True)},
    "refusal": {"reason": (str, True), "boot": (int, False)},
    "bye": {"reason": (str, True)},
    "finished": {},
}  # fmt: skip
HASH = bytes(range(32))
ONE = Manifest(HASH, 9, 9, (HASH[:16],), (("control", 9),), HASH)
BOX = IndirectManifest(HASH, 9, HASH, ONE)
HELLO = Hello("board-7", 3, 9, software="x", plan=HASH, counts=(3, 3, 3), holds=(HASH,))
TASK, WANT = Task(1, "train", ONE, 60.0), BlockRequest(HASH, ((0, 1),))
UPDATE = Update("board-7", 1, "train", 9, HASH, {}, {"accuracy.test.global": 0.5})
ROW = ArraySpec("weights.*", None, None, None, None, None, 1e6, True)
ABOUT = About(("many",), ("manifest",), ("cat",), 16, ("loss.test",), True, b'"exact"')
FOR_ALL = {  # Key -> (a message without it, a message with it); all receivers get it.
    "hello.can": (HELLO, replace(HELLO, can=("inline", "names"))),
    "hello.names": (HELLO, replace(HELLO, names=("cat", "dog", "owl"))),
    "hello.names_hash": (HELLO, replace(HELLO, names_hash=HASH)),
    "hello.capacity": (HELLO, replace(HELLO, capacity=2)),
    "hello.working": (HELLO, replace(HELLO, working="red")),
    "hello.answered": (HELLO, replace(HELLO, answered=3)),
    "hello.last_state": (HELLO, replace(HELLO, last_state=b"PF")),
    "welcome.about": (Welcome(b"{}"), Welcome(b"{}", ABOUT)),
    "state.who": (State(True), State(True, who="host 7 runs/spring")),
    "state.runs": (State(True), State(True, runs=("blue", "red"))),
    "state.now": (State(True, "here"), State(True, "here", now=RoundStatus(3, "train", 0, (HASH[:4],)))),
}  # fmt: skip
FOR_A_FORM = {  # Key -> (the form of the receivers that get it, a message with it).
    "task.wants": ("wants", (replace(TASK, wants=(ROW,)),)),
    "task.follows": ("inline", (replace(TASK, follows=True),)),
    "task.manifest": ("manifest", (replace(TASK, broadcast=BOX),)),
    "task.credit": ("credit", (replace(TASK, credit=1),)),
    "task.took": ("codec", (replace(TASK, took=(1, "train")),)),
    "task.delta": ("codec", (replace(TASK, delta=Delta(HASH, ONE)),)),
    "task.personal": ("secagg", (replace(TASK, personal=bytes(84)),)),
    "want.more": ("many", (replace(WANT, more=((HASH, ((1, 2),)),)),)),
    "update.numbers": ("wants", (UPDATE, b"x", ("accuracy.test.global",))),
    "update.manifest": ("manifest", (UPDATE, BOX)),
    "update.follows": ("credit", (replace(UPDATE, follows=True), ONE)),
    "welcome.instead": ("runs", (Welcome(b"{}", instead="red"),)),
    "welcome.keep": ("runs", (Welcome(b"{}", keep="red"),)),
    "refusal.answers": ("answers", (Refusal("x", answers=(7, 3)),)),
}


def read(kind, payload):
    """Return the fields that a reader of version 1.0 reads from a payload.

    Raise ValueError or TypeError if the payload is malformed.
    """
    fields = msgpack.unpackb(
        payload, max_str_len=512, max_array_len=4096, max_map_len=256, max_ext_len=0, strict_map_key=True
    )
    for key, (kinds, required) in KNOWN[kind].items():
        if key not in fields and required:
            raise ValueError(f"no {key}")
        if key in fields and (
            not isinstance(fields[key], kinds) or isinstance(fields[key], bool) and kinds in (int, ANY)
        ):
            raise TypeError(f"{key} is {fields[key]!r}")
    return {key: fields[key] for key in KNOWN[kind] if key in fields}


def rows():
    """Yield (kind.key, the meaning of the key on the page) for all keys of messages."""
    section, kind, found = PAGE.split("## 5. Messages")[1].split("### Forms")[0], "", []
    for line in section.splitlines():
        kind = line.removeprefix("### ").strip("`") if line.startswith("### ") else kind
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 5 and set("".join(cells)) - {"-"} and cells[0] != "key":
            key = cells[0].strip("`")
            if "." not in key:
                found.append((f"{kind}.{key}", cells[4]))
    return found


# Kinds of messages that are for operators and coordinators only, so no device gets them.
NOT_FOR_DEVICES = ("command", "result", "news", "probe", "step_down")
NEW = {
    name: words
    for name, words in rows()
    for kind, _, key in [name.partition(".")]
    if kind not in NOT_FOR_DEVICES and key not in KNOWN[kind]
}


def test_this_file_has_each_new_key_of_the_page_and_the_page_marks_it():
    assert set(NEW) == FOR_ALL.keys() | FOR_A_FORM.keys()
    assert not [name for name, words in NEW.items() if not words.startswith("since 1.")]


@pytest.mark.parametrize("name", FOR_ALL)
def test_a_reader_of_1_0_ignores_a_new_key_that_all_receivers_get(name):
    before, after = (codec.encode(message) for message in FOR_ALL[name])
    kind, key = name.split(".")
    assert key in msgpack.unpackb(after) and key not in msgpack.unpackb(before)
    assert read(kind, after) == read(kind, before)


@pytest.mark.parametrize("name", FOR_A_FORM)
def test_the_page_names_the_form_of_each_key_that_only_some_receivers_get(name):
    form, said = FOR_A_FORM[name]
    assert re.search(rf"for a (device|coordinator|party) that sends `{form}`", NEW[name])
    assert name.split(".")[1] in msgpack.unpackb(codec.encode(*said), strict_map_key=False)


@pytest.mark.parametrize("message", [HELLO, TASK, WANT, UPDATE, State(True), Welcome(b"{}")])
def test_a_message_without_new_values_has_no_new_key(message):
    attachment = b"x" if message is UPDATE else None
    kind = codec.KINDS[type(message)]
    assert set(msgpack.unpackb(codec.encode(message, attachment))) <= KNOWN[kind].keys()
