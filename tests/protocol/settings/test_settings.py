"""Tests that settings are decoded strictly, and that an error is one sentence with its place and the solution."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protofleet.protocol.settings.reader import (
    SettingsError,
    decode,
    encode,
    override,
    read_toml,
    tomllib,
    write_toml,
)


@dataclass(frozen=True)
class Tls:
    ca: str
    cert: str | None = None


@dataclass(frozen=True)
class Broker:
    host: str = "127.0.0.1"
    port: int = 1883
    tls: Tls | None = None

    def __post_init__(self):
        if not 1 <= self.port <= 65_535:
            raise ValueError(f"port is {self.port}, it must be 1 to 65535")


@dataclass(frozen=True)
class Run:
    name: str
    rounds: int
    lr: float = 0.1
    fresh: bool = False
    kind: Literal["auto", "embedded", 3] = "auto"
    seeds: tuple[int, ...] = ()
    brokers: tuple[Broker, ...] = ()
    broker: Broker = field(default_factory=Broker)
    clients: Mapping[str, int] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    hyper: dict[str, Any] = field(default_factory=dict)
    split: str | None = None


LEAST = {"name": "r", "rounds": 3}


def mistake(**more):
    with pytest.raises(SettingsError) as error:
        decode(Run, {**LEAST, **more})
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_missing_setting_gets_its_default():
    assert decode(Run, LEAST) == Run("r", 3)


def test_every_kind_of_setting_is_decoded():
    text = """
        name = "r"
        rounds = 3
        lr = 1
        fresh = true
        kind = 3
        seeds = [1, 2]
        split = "dirichlet"
        shares = { a = 1, b = 0.5 }
        clients.mnist = 2
        [broker]
        port = 8883
        tls = { ca = "ca.crt" }
        [[brokers]]
        host = "one"
        [[brokers]]
        host = "two"
        [hyper]
        mu = 0.1
        deep = { er = [1, "two"] }
    """
    run = decode(Run, tomllib.loads(text))
    assert run == Run(
        "r", 3, 1.0, True, 3, (1, 2), (Broker("one"), Broker("two")), Broker(port=8883, tls=Tls("ca.crt")),
        {"mnist": 2}, {"a": 1.0, "b": 0.5}, {"mu": 0.1, "deep": {"er": [1, "two"]}}, "dirichlet",
    )  # fmt: skip
    assert type(run.lr) is float and type(run.shares["a"]) is float


def test_an_unknown_setting_is_refused_with_its_path_and_all_valid_names():
    assert mistake(broker={"prot": 1}) == (
        "broker.prot is not a setting; did you mean port? there are host, port, tls"
    )
    assert mistake(broker={"tls": {"ca": "x", "zzz": 1}}) == (
        "broker.tls.zzz is not a setting; there are ca, cert"
    )
    assert "brokers[1].hots is not a setting; did you mean host?" in mistake(brokers=[{}, {"hots": "x"}])


WRONG = [
    ({"rounds": "3"}, 'rounds is "3", but must be a whole number'),
    ({"rounds": 3.0}, "rounds is 3.0, but must be a whole number"),
    ({"rounds": True}, "rounds is true, but must be a whole number"),
    ({"lr": True}, "lr is true, but must be a number"),
    ({"lr": "fast"}, 'lr is "fast", but must be a number'),
    ({"lr": 10**400}, "lr is too large a number"),
    ({"fresh": 1}, "fresh is 1, but must be true or false"),
    ({"name": 7}, "name is 7, but must be a string"),
    ({"name": ["a"]}, 'name is ["a"], but must be a string'),
    ({"kind": "none"}, 'kind is "none", but must be one of "auto", "embedded", 3'),
    ({"kind": 3.0}, 'kind is 3.0, but must be one of "auto", "embedded", 3'),
    ({"kind": []}, 'kind is [], but must be one of "auto", "embedded", 3'),
    ({"seeds": 1}, "seeds is 1, but must be a list"),
    ({"seeds": "12"}, 'seeds is "12", but must be a list'),
    ({"seeds": [1, "two"]}, 'seeds[1] is "two", but must be a whole number'),
    ({"broker": "here"}, 'broker is "here", but must be a table'),
    ({"broker": {"port": 0}}, "broker.port is 0, it must be 1 to 65535"),
    ({"broker": {"tls": {}}}, "broker.tls.ca is missing and has no default"),
    ({"brokers": {"host": "x"}}, "brokers is {'host': 'x'}, but must be a list"),
    ({"clients": {"mnist": "two"}}, 'clients.mnist is "two", but must be a whole number'),
    ({"clients": [1]}, "clients is [1], but must be a table"),
    ({"shares": {"a": False}}, "shares.a is false, but must be a number"),
    ({"split": 2}, "split is 2, but must be a string"),
]


@pytest.mark.parametrize(("change", "words"), WRONG, ids=[str(w[0]) for w in WRONG])
def test_a_wrong_value_is_refused_with_the_value_and_the_valid_values(change, words):
    assert mistake(**change) == words


def test_a_missing_setting_without_a_default_is_named():
    with pytest.raises(SettingsError, match=r"^rounds is missing and has no default$"):
        decode(Run, {"name": "r"})
    with pytest.raises(SettingsError, match=r"^plan is \[1\], but must be a table$"):
        decode(Run, [1], "plan")
    with pytest.raises(SettingsError, match=r"^plan\.rounds is missing"):
        decode(Run, {"name": "r"}, "plan")


def test_an_assignment_overrides_the_table_without_a_change_of_the_table():
    table = {"name": "r", "broker": {"host": "a", "port": 1}}
    assignments = [
        "broker.port=2",
        "broker.tls.ca = x y",
        "lr=1e-3",
        "kind=embedded",
        'name="7"',
        "seeds=[1, 2]",
    ]
    assert override(table, assignments) == {
        "name": "7", "broker": {"host": "a", "port": 2, "tls": {"ca": "x y"}},
        "lr": 1e-3, "kind": "embedded", "seeds": [1, 2],
    }  # fmt: skip
    assert table == {"name": "r", "broker": {"host": "a", "port": 1}}


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("-3", -3), ("1.5", 1.5), ("inf", math.inf), ("", ""), ("a=b", "a=b"), ("1.2.3", "1.2.3"),
     ("[1", "[1"), ("{a = 1}", {"a": 1}), ('"q"', "q")],
)  # fmt: skip
def test_an_assigned_value_is_read_as_toml_or_otherwise_as_a_string(text, value):
    assert override({}, [f"key={text}"]) == {"key": value}


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("rounds", "is not of the form table.key=value"),
        ("=3", "is not of the form table.key=value"),
        ("name.x=1", "name is not a table"),
    ],
)
def test_an_invalid_assignment_is_refused_with_its_text(assignment, words):
    with pytest.raises(SettingsError, match=re.escape(f"--set {assignment!r}")) as error:
        override({"name": "r"}, [assignment])
    assert words in str(error.value)


def test_a_file_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"there is no file .*gone\.toml"):
        read_toml(tmp_path / "gone.toml")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_toml(tmp_path)
    for data, words in [(b"a = \xff", "cannot be read"), (b"a = ", "is not TOML")]:
        (tmp_path / "bad.toml").write_bytes(data)
        with pytest.raises(SettingsError, match=words):
            read_toml(tmp_path / "bad.toml")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["", '"', "\\", "\\n", "\n", "\r\n", "\t\b\f\x1b\x7f\x00", '"""', "'", "é\u2028\U0001f600", "a.b", "#"]
)
FLOATS = st.floats()
SCALARS = TEXTS | st.booleans() | st.integers() | FLOATS
TABLES = st.recursive(
    st.dictionaries(TEXTS, SCALARS, max_size=3),
    lambda inner: st.dictionaries(
        TEXTS,
        SCALARS | inner | st.lists(SCALARS | inner, max_size=3) | st.lists(inner, max_size=2),
        max_size=3,
    ),
    max_leaves=6,
)


def plain(value):
    """Return a copy of a value that can be compared even if it contains NaN."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return repr(value)


@given(TABLES)
@example({"x": {}, "y": [], "z": [{}, {"a": [{}]}]})
@example({"table": [{"inner": {"key": 1}}, {"inner": [{"key": 2}]}], "": {"": ""}})
def test_written_tables_are_read_unchanged(table):
    assert plain(tomllib.loads(write_toml(table))) == plain(table)


TLS = st.none() | st.builds(Tls, TEXTS, st.none() | TEXTS)
BROKERS = st.builds(Broker, TEXTS, st.integers(1, 65_535), TLS)
RUNS = st.builds(
    Run, TEXTS, st.integers(), FLOATS.filter(lambda x: x == x), st.booleans(),
    st.sampled_from(["auto", "embedded", 3]), st.lists(st.integers(), max_size=2).map(tuple),
    st.lists(BROKERS, max_size=2).map(tuple), BROKERS, st.dictionaries(TEXTS, st.integers(), max_size=2),
    st.dictionaries(TEXTS, st.floats(allow_nan=False), max_size=2), st.just({}), st.none() | TEXTS,
)  # fmt: skip


@given(RUNS)
def test_written_settings_are_read_unchanged(run):
    assert decode(Run, tomllib.loads(write_toml(encode(run)))) == run


def test_settings_in_a_file_are_read_unchanged(tmp_path):
    run = replace(Run("é\n", 1), hyper={"a b": math.inf})
    (tmp_path / "run.toml").write_text(write_toml(encode(run)), encoding="utf-8", newline="")
    assert decode(Run, read_toml(tmp_path / "run.toml")) == run


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / "a.toml").write_text("rounds = 3\n", encoding="utf-8-sig")
    assert read_toml(tmp_path / "a.toml") == {"rounds": 3}


@dataclass
class Tries:
    most: int | Literal["auto"] = "auto"


@pytest.mark.parametrize("value", [3, "auto"])
def test_a_setting_accepts_a_number_or_a_word(value):
    assert decode(Tries, {"most": value}).most == value


def test_a_wrong_word_is_refused_with_the_valid_word_and_number():
    with pytest.raises(SettingsError, match='most is "often", but must be "auto" or a number'):
        decode(Tries, {"most": "often"})
