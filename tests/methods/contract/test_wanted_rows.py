"""Tests that the rows in a task state the same rules by which the coordinator judges answers.

An answer that keeps to the rows is accepted, and an answer that breaks any of them is refused. The answers are made
from the bytes of the rows, like those of a client that knows no method.
"""

import contextlib
import math
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofleet.methods.contract.base import Member, Reply
from protofleet.methods.contract.catalog import names
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.round_arrays import cheap_settings, smallest_answer
from protofleet.methods.contract.wants import table_of
from protofleet.methods.nets import catalog as nets
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.wire.tables import wanted_rows
from tests.support.few_methods import of_each_shape

CLASSES, EXAMPLES, NORM = 5, 40, 1e6
ROOM = 1024  # Most bytes of a table.
# Other methods have the same rows for weights, and FedLSA takes long to fit its anchors.
WEIGHING = ("fedavg", "fedprox")
AT_LEAST_TWO = ">=2 where repeated: "
MULTIPLE = "most, or a multiple of "
ROW_NORM = "row norm<="


def rounds_of(plan):
    """Yield each ask of two rounds."""
    server = plan.server_half()
    for number in (1, 2):
        server.begin(number, [Member("a", EXAMPLES, (EXAMPLES // CLASSES,) * CLASSES)])
        story, replies = server.round(), None
        with contextlib.suppress(StopIteration):
            while True:
                ask = next(story) if replies is None else story.send(replies)
                yield ask
                replies = [Reply("a", EXAMPLES, smallest_answer(ask))]


@cache
def questions(method):
    plan = Plan(method, CLASSES, 2, size=32, network=Network("cnn_bn", feature_size=6))
    return tuple(rounds_of(replace(plan, hyper=cheap_settings(plan))))


def packed(ask):
    return msgpack.packb(wanted_rows(table_of(ask.wants, ask.payload, NORM)))


class Client:
    """The facts that a foreign client knows: the rows, the shapes of the broadcast, and its number of examples."""

    def __init__(self, ask, seed):
        rows = [dict(zip(("name", "dtype", "shape", "most", "low", "high", "norm", "finite", "rules"), row))
                for row in msgpack.unpackb(packed(ask))]  # fmt: skip
        self.sent = {
            name: (str(v.dtype).removeprefix("torch."), list(v.shape)) for name, v in ask.payload.items()
        }
        self.dice = np.random.default_rng(seed)
        names = [
            *self.sent,
            *(r["name"] for r in rows if "*" not in r["name"] and r["name"] not in self.sent),
        ]
        fitting = {name: next((r for r in rows if fnmatchcase(name, r["name"])), None) for name in names}
        self.rows = {name: row for name, row in fitting.items() if row}

    def form(self, name):
        dtype, shape = self.sent.get(name, (None, None))
        row = self.rows[name]
        return row["dtype"] or dtype, shape if row["shape"] is None else row["shape"]

    def axes(self):
        return {dim for name in self.rows for dim in self.form(name)[1] if isinstance(dim, str)}

    def longest(self, axis):
        """Return the largest value of a free length that all rows that name it allow."""
        mine = [row for name, row in self.rows.items() if axis in self.form(name)[1]]
        limits = [row["most"] for row in mine]
        for row in mine:
            if "sum<=examples" in row["rules"]:
                limits.append(
                    EXAMPLES // 2 if any(rule.startswith(AT_LEAST_TWO) for rule in row["rules"]) else EXAMPLES
                )
            if "rows<=examples" in row["rules"]:
                limits.append(EXAMPLES)
        return min(limits)

    def length(self, axis, least):
        most, step = self.longest(axis), self.step(axis)
        if step:
            return int(self.dice.choice([most, *range(step, most, step)]))
        return int(self.dice.integers(least, most + 1))

    def step(self, axis):
        rules = (
            rule for name, row in self.rows.items() if axis in self.form(name)[1] for rule in row["rules"]
        )
        return next((int(rule.removeprefix(MULTIPLE)) for rule in rules if rule.startswith(MULTIPLE)), 0)

    def row_norm(self, row):
        rules = (rule for rule in row["rules"] if rule.startswith(ROW_NORM))
        return next((float(rule.removeprefix(ROW_NORM)) for rule in rules), 0.0)

    def answer(self, least=0):
        lengths = {axis: self.length(axis, least) for axis in sorted(self.axes())}
        optional = {name for name, row in self.rows.items() if "optional" in row["rules"]}
        return {
            name: np.asarray(self.array(name, lengths))
            for name in self.rows
            if name not in optional or least or self.dice.integers(2)
        }

    def array(self, name, lengths):
        row, (dtype, shape) = self.rows[name], self.form(name)
        shape = [lengths.get(dim, dim) for dim in shape]
        low, high = (
            (row["low"] is None and -1e5 or row["low"] or 0),
            (1e5 if row["high"] is None else row["high"]),
        )
        if "sum<=examples" in row["rules"]:
            most = EXAMPLES // max(1, math.prod(shape))
            two = any(rule.startswith(AT_LEAST_TWO) for rule in row["rules"])
            return self.dice.integers(2 if two else 1, most + 1, shape).astype(dtype)
        if not dtype.startswith("float"):
            return self.dice.integers(int(low), int(min(high, 1000)) + 1, shape).astype(dtype)
        values = self.dice.uniform(low, high, shape)
        size = float(np.linalg.norm(values))
        if row["norm"] is not None and size > 0.99 * row["norm"]:
            values *= 0.99 * row["norm"] / size
        if most := self.row_norm(row):
            values *= 0.99 * most / max(np.linalg.norm(values, axis=1), default=1)
        return values.astype(dtype)

    def breaches(self, good):
        """Yield a name and an answer for each breach; each answer breaks one rule."""
        yield "an extra array", {**good, "more": np.zeros(1, "float32")}
        for name in good:
            row, value = self.rows[name], good[name]
            if "optional" not in row["rules"]:
                yield f"no {name}", {k: v for k, v in good.items() if k != name}
            yield (
                f"dtype of {name}",
                {**good, name: value.astype("int32" if value.dtype != "int32" else "int64")},
            )
            yield f"rank of {name}", {**good, name: value[None]}
            for what, number in self.wrong_numbers(row, value):
                other = value.copy()
                other.flat[0] = number
                yield f"{what} of {name}", {**good, name: other}
            for at, dim in enumerate(self.form(name)[1]):
                longer = {**good, name: np.concatenate([value, value.take([0], at)], at)}
                if not isinstance(dim, str) or len([n for n in good if dim in self.form(n)[1]]) > 1:
                    yield f"length {at} of {name}", longer
            for rule in row["rules"]:
                if rule.startswith(MULTIPLE):
                    yield (
                        f"{rule} of {name}",
                        {**good, name: value[:1].repeat(self.step(row["shape"][0]) + 1)},
                    )
                    yield f"nothing of {name}", {**good, name: value[:0]}
                if rule.startswith(AT_LEAST_TWO):
                    other = rule.removeprefix(AT_LEAST_TWO)
                    ones, same = np.ones_like(value), np.zeros_like(good[other])
                    yield f"{rule} of {name}", {**good, name: ones, other: same}
        for axis in self.axes():
            yield f"most of {axis}", self.stretched(good, axis)

    def wrong_numbers(self, row, value):
        if row["low"] is not None:
            yield "low", row["low"] - 1
        # The type itself excludes what is above its largest number.
        largest = 2**62 if value.dtype.kind not in "iu" else min(2**62, np.iinfo(value.dtype).max)
        if row["high"] is not None and value.dtype != bool and row["high"] < largest:
            yield "high", row["high"] * 1.01 + 1
        if row["finite"]:
            yield "not a number", math.nan
            yield "infinity", -math.inf
        if row["norm"] is not None:
            yield "norm", row["norm"] * 1.01
        if most := self.row_norm(row):
            yield "norm of a row", most * 1.01
        if "sum<=examples" in row["rules"]:
            yield "sum", EXAMPLES + 1

    def stretched(self, good, axis):
        """Return the answer with one more entry along a free axis than the rows allow."""
        count = min(row["most"] for name, row in self.rows.items() if axis in self.form(name)[1]) + 1
        made = dict(good)
        for name in good:
            if axis in (shape := self.form(name)[1]):
                made[name] = good[name].take([0] * count, shape.index(axis))
        return made


def judged(ask, answer):
    tensors = {name: torch.from_numpy(np.array(value, order="C")) for name, value in answer.items()}
    return ask.problem_with(tensors, EXAMPLES, NORM)


@pytest.mark.parametrize("method", of_each_shape(names()))
@given(seed=st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_an_answer_that_is_made_from_the_rows_alone_is_accepted(method, seed):
    for ask in questions(method):
        assert judged(ask, Client(ask, seed).answer()) is None


@pytest.mark.parametrize("method", of_each_shape(names()))
@given(seed=st.integers(0, 2**32))
@settings(max_examples=3, deadline=None)
def test_an_answer_that_breaks_any_rule_of_the_rows_is_refused(method, seed):
    for ask in questions(method):
        client = Client(ask, seed)
        good = client.answer(least=2)
        assert judged(ask, good) is None
        taken = [what for what, broken in client.breaches(good) if judged(ask, broken) is None]
        assert taken == []


@pytest.mark.parametrize("method", names())
def test_the_rows_of_each_method_take_less_than_a_kilobyte(method):
    assert max((len(packed(ask)) for ask in questions(method)), default=0) < ROOM


@pytest.mark.parametrize("network", nets.names())
@pytest.mark.parametrize("method", WEIGHING)
def test_the_rows_for_the_weights_of_each_network_take_less_than_a_kilobyte(method, network):
    recipe = nets.RECIPES[network]
    samples = map(InputShape, ((3, 32, 32), (1, 28, 28), (3, 224, 224), nets.SERIES))
    sample = next(one for one in samples if recipe.problem_with(one) is None)
    with torch.device("meta"):  # Only shapes are needed; some networks have a hundred million numbers.
        plan = Plan(method, 10, 1, **sample.settings(), network=Network(network))
        server = plan.server_half()
        server.begin(1, [Member("a", EXAMPLES, (4,) * 10)])
        ask = next(server.round())
    assert 0 < len(packed(ask)) < ROOM
