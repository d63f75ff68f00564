"""Tests that docs/protocol.md describes the code: its tables, its numbers and each byte of its example."""

import importlib
import json
import re
from dataclasses import fields
from pathlib import Path

import msgpack
import pytest

from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract import catalog as methods
from protofleet.methods.contract.wants import AT_LEAST_TWO, MULTIPLE, OPTIONAL, ROW_NORM, ROWS, SUM
from protofleet.protocol.link.base import FRAME_OVERHEAD
from protofleet.protocol.security import enrolment as enrolled
from protofleet.protocol.security.envelope import DOMAIN, FIELD_TYPES, SIGNATURE, Header
from protofleet.protocol.transport.address import FINAL_REASONS, BrokerError
from protofleet.protocol.transport.reconnect import FLAPS, STABLE_SECONDS
from protofleet.protocol.wire import forms, tables
from protofleet.protocol.wire.arrays import DTYPES, KINDS
from protofleet.protocol.wire.codec import DECODERS
from protofleet.protocol.wire.messages import About, ArraySpec
from protofleet.protocol.wire.reasons import MEANINGS, Reason
from protofleet.protocol.wire.topics import PREFIX, TOPIC_RULES
from tests.protocol.ends import Ends
from tests.protocol.golden.vectors import load
from tests.protocol.wire.test_codec import FIELDS, LATER
from tools.pages import arrays, limits, reasons, stages

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
FLAT = " ".join(TEXT.split())
EXAMPLES = re.findall(
    r"^\*\*([^*\n]+)\*\*[^\n]*\n(?:[^\n]+\n)?\n```hex\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL
)
TYPES = {int: "int", str: "str", bytes: "bin", bool: "bool", list: "array", dict: "map", type(None): "nil"}


def section(title):
    """Return the text below a heading, with its subsections."""
    level = len(title) - len(title.lstrip("#"))
    return re.split(rf"^#{{1,{level}}} ", TEXT.split(f"\n{title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text):
    """Return the rows of cells of the tables in a section, without the lines of dashes."""
    found = [
        [cell.strip() for cell in line.strip("|").split(" |")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    return [row for row in found if not set("".join(row)) <= set("-|")]


def number(text):
    bare = text.replace(",", "")
    return int(bare) if bare.isdigit() else float(bare)


def keys_of_messages():
    """Yield (kind, key, types, whether it is required, meaning) from the table of each message."""
    for kind in DECODERS:
        for row in rows(section(f"### `{kind}`")):
            if len(row) == 5 and row[0] != "key":
                key, types, required, _, meaning = row
                yield kind, key.strip("`"), types, required, meaning


@pytest.mark.parametrize(("name", "block"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_each_example_has_the_bytes_of_its_vector(name, block):
    lines = [re.fullmatch(r"((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?", line) for line in block.splitlines()]
    shown = " ".join(line[1] for line in lines)
    (vector,) = (v for v in load()["vectors"] if v["name"] == name)
    assert bytes.fromhex(shown).hex() == vector["hex"]


def test_each_hex_block_of_the_page_is_an_example():
    assert len(EXAMPLES) == TEXT.count("```hex") >= 8


def test_the_table_of_limits_is_up_to_date():
    assert limits.generate(TEXT) == TEXT, "run python -m tools.pages.limits"


def test_the_table_of_limits_has_each_limit_of_the_wire():
    named = {name for _, name in limits.LIMITS}
    for module in (
        "wire.arrays",
        "wire.codec",
        "security.envelope",
        "link.fetch",
        "link.broadcast",
        "wire.tables",
    ):
        constants = vars(importlib.import_module(f"protofleet.protocol.{module}"))
        for name in constants:
            if (
                re.fullmatch(r"MAX_\w+|\w+_SECONDS", name)
                and f"protofleet.protocol.{module}.{name}" not in named
            ):
                imported = {f"protofleet.protocol.{m}.{name}" for m in ("wire.codec", "wire.arrays")} & named
                assert imported, f"{module}.{name} is not in the table"


def test_the_table_of_reasons_is_complete_and_up_to_date():
    assert set(MEANINGS) == set(Reason)
    assert reasons.generate(TEXT) == TEXT, "run python -m tools.pages.reasons"


def test_the_header_is_described_field_by_field():
    found = [row for row in rows(section("### The header")) if row[0].isdigit()]
    table = [(int(row[0]), row[1].strip("`"), row[2]) for row in found]
    expected = [(i, f.name, TYPES[t]) for i, (f, t) in enumerate(zip(fields(Header), FIELD_TYPES))]
    assert table == expected
    assert f"the {len(DOMAIN)} bytes `{DOMAIN[:-1].decode()}` 0x00" in FLAT


def test_every_key_of_every_message_is_described_with_its_type():
    described = {name: {} for name in DECODERS}
    for kind, key, types, required, meaning in keys_of_messages():
        if "." not in key:
            described[kind][key] = (set(types.split(" or ")), required == "no")
            assert ("since 1." in meaning) == (key in LATER.get(kind, ()))
    number_or = {frozenset({int, float}): {"number"}}
    expected = {
        name: {
            key: (number_or.get(frozenset(types)) or {TYPES[t] for t in types}, may_miss)
            for key, (types, may_miss) in keys.items()
        }
        for name, keys in FIELDS.items()
    }
    for name, keys in LATER.items():
        expected[name] |= {key: ({TYPES[t] for t in types}, True) for key, types in keys.items()}
    # The coordinator refuses nil, not the codec.
    expected["update"]["arrays"] = (
        {"bin", "array"},
        False,
    )
    assert described == expected


def open_payloads():
    """Yield (kind, payload, name) of each vector that is not sealed, with the keys in the order of the bytes."""
    for vector in load()["vectors"]:
        if vector["content"]["is"] == "Envelope" and not vector["content"]["header"]["suite"]:
            frame = bytes.fromhex(vector["hex"])
            start = 5 + int.from_bytes(frame[3:5], "little")
            payload = msgpack.unpackb(frame[start:-SIGNATURE], strict_map_key=False)
            yield vector["content"]["header"]["kind"], payload, vector["name"]


def described_keys():
    """Return, for each kind, the keys that section 5 lists, and whether each came with a later minor version."""
    keys = {name: {} for name in DECODERS}
    for kind, key, _, _, meaning in keys_of_messages():
        keys[kind][key] = "since 1." in meaning or "." in key
    return keys


def test_the_keys_of_a_payload_are_in_the_order_of_the_table():
    keys = described_keys()
    for kind, payload, name in open_payloads():
        inner = [f"about.{key}" for key in payload.get("about", {})]
        for said in (list(payload), inner):
            assert said == [key for key in keys[kind] if key in said], name


def test_only_keys_of_later_minor_versions_are_left_out_if_they_are_empty():
    assert 'if their value is empty, 0, false or nil: the keys marked "since 1.1" in section 5' in FLAT
    keys = described_keys()
    for kind, payload, name in open_payloads():
        about = {f"about.{key}": value for key, value in payload.get("about", {}).items()}
        for key, is_new in keys[kind].items():
            if (kind, key) == ("state", "runs"):
                continue  # An empty list has a meaning: the coordinator could lead several runs.
            if is_new or (kind, key) == ("refusal", "boot"):
                assert {**payload, **about}.get(key, True), f"{name}: {key}"
            else:
                assert key in payload, f"{name}: {key}"


def test_every_key_of_about_is_described():
    described = {key for _, key, *_ in keys_of_messages() if "." in key}
    about = About(("a",), ("a",), ("a",), 1, ("a",), True, b"a")
    expected = {f"about.{key}" for key in tables.about_fields(about)}
    assert {key for key in described if key.startswith("about.")} == expected


def test_the_page_describes_each_entry_and_each_rule_of_a_row_of_wants():
    table = rows(section("### What an answer must hold"))
    entries = [row[1] for row in table if len(row) == 4 and row[0].isdigit()]
    assert entries == [f.name for f in fields(ArraySpec)]
    assert {row[0].strip("`") for row in table if len(row) == 2 and row[0] != "rule"} == {
        OPTIONAL, SUM, ROWS, f"{AT_LEAST_TWO}X", f"{MULTIPLE}N", f"{ROW_NORM}N"
    }  # fmt: skip


def test_the_page_describes_exactly_the_forms_of_the_code():
    named = {row[0].strip("`") for row in rows(section("### Forms")) if row[0] != "name"}
    assert {*forms.COORDINATOR_FORMS, *forms.DEVICE_FORMS, forms.RUNS} == named


def test_the_table_of_the_keys_of_a_stage_is_up_to_date():
    assert stages.generate(TEXT) == TEXT, "run python -m tools.pages.stages"


def test_the_table_of_the_arrays_of_each_method_is_up_to_date():
    assert arrays.generate(TEXT) == TEXT, "run python -m tools.pages.arrays"


def test_the_page_names_the_files_that_an_enrolment_installs():
    named = re.findall(r"`([\w.]+)`", " ".join(row[0] for row in rows(section("### The keys of a device"))))
    assert set(named) == {
        *(enrolled.IDENTITY_KEY, enrolled.RECEIVE_KEY, enrolled.TLS_KEY, enrolled.TLS_CERT, enrolled.TLS_CA),
        *(enrolled.OWN_RECORD, enrolled.ROOTS_FILE, enrolled.REVOKED_FILE, "coordinator.record"),
    }


def test_the_page_shows_the_parts_of_the_vector_with_the_kind_control():
    (vector,) = (
        v for v in load()["vectors"] if v["name"] == "update, offered, with arrays of the kind control"
    )
    shown = json.loads(re.search(r'kind control" has (\[\[.*?\]), \.\.\.\]', FLAT)[1] + "]")
    assert vector["content"]["attachment"]["parts"][: len(shown)] == shown
    (body,) = (v for v in load()["vectors"] if v["name"] == "body of corners")
    assert int.from_bytes(bytes.fromhex(body["hex"])[:4], "little") + 4 == shown[0][1]


def test_the_page_has_the_topics_dtypes_and_kinds_of_the_code():
    table = [(r[0].strip("`"), r[1]) for r in rows(section("## 2. MQTT")) if r[0].startswith("`protofleet")]
    said = [row for row in TOPIC_RULES if not row.retired]
    short = {"{device}": "<device>", "{digest}": "<name on the wire in hex>"}
    for row in said:
        pattern = row.pattern
        if row.kind in ("op_up", "op_down"):
            pattern = pattern.replace("{device}", "<operator>")
        for placeholder, words in short.items():
            pattern = pattern.replace(placeholder, words)
        writer = row.writer if row.writer in ("coordinator", "standby") else f"that {row.writer}"
        assert (f"{PREFIX}/<federation>/{pattern}", writer) in table
    assert len(table) == len(said)
    listed = re.search(r"dtypes are (.*?) \(one byte", FLAT)[1]
    assert re.findall(r"`(\w+)`", listed) == list(DTYPES)
    listed = re.search(r"if this part is (`weights`.*?)\. Otherwise the kind is `control`", FLAT)[1]
    assert set(re.findall(r"`(\w+)`", listed)) == KINDS


def test_the_page_has_the_final_reason_codes_of_the_code():
    listed = re.search(r"After the reason codes (.*?), in a CONNACK", FLAT)[1]
    codes = set()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", listed):
        codes |= set(range(int(first), int(last or first) + 1))
    assert codes == set(FINAL_REASONS)


def test_the_page_has_the_times_for_stragglers_and_reconnects_of_the_code():
    factor, least = re.search(
        r"has ([\d.]+) x t from its task on, or ([\d.]+) s if this is longer", FLAT
    ).groups()
    assert (float(factor), float(least)) == (Policy().straggler_factor, Policy().straggler_seconds)
    (stable,) = re.findall(r"After a connection of more than (\d+) s", FLAT)
    assert float(stable) == STABLE_SECONDS and FLAPS == 3 and "After three connections in a row" in FLAT


def test_the_page_states_the_smallest_packet_that_a_link_accepts(tmp_path):
    least = int(number(re.search(r"The broker must accept packets of at least ([\d,]+) bytes", FLAT)[1]))
    link = Ends(tmp_path, "a").coordinator
    link.adapt(least)
    assert link.inline == link.block == least - FRAME_OVERHEAD
    with pytest.raises(BrokerError):
        link.adapt(least - 1)


WEIGHTS_OF_ROWS = {
    "devices": "1",
    "counts": "the samples of the class / most",
    "shares": "the samples of the class / all samples of the device",
}


def test_the_page_has_the_weights_of_the_methods_in_masked_sums():
    weights = {}
    for what, weight in rows(section("### Numbers"))[1:]:
        weights |= {(what.split()[0], name): weight for name in re.findall(r"`(\w+)`", what)}
    found = {}
    for name in methods.names():
        for one in methods.load(name).averaged.values():
            if one.arrays and one.by == "devices":
                found["arrays", name] = "1"
            if one.rows:
                found["rows", name] = WEIGHTS_OF_ROWS[one.rows]
    assert weights == found
