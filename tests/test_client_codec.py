"""Tests of the coded arrays of docs/examples/device.py: they have the bytes that the product's device sends."""

import json
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from protofleet.protocol.coding.bundle import Bundle
from protofleet.protocol.coding.coder import encode_kind, rules_of
from protofleet.protocol.settings.codec import CodecSettings, CodecStage
from protofleet.protocol.settings.named_codecs import short_table
from tests.edge_client.test_coded_answer import PHASES, SHOWN, SPARSE, trained
from tests.edge_client.test_coded_answer import Device as ProductDevice
from tests.test_write_a_client import BOARD, HOLDERS, device

GOLDEN = json.loads((Path(__file__).parent / "protocol" / "golden" / "coding_1.json").read_text())
STAGES = {
    "exact": CodecStage(against="broadcast"),
    "exact, no reference": CodecStage(),
    "int8": CodecStage("int8"),
    "int8, feedback": CodecStage("int8", "broadcast", feedback=True),
    "ternary": CodecStage("ternary", "broadcast", keep=10),
    "ternary, feedback": CodecStage("ternary", "broadcast", keep=16, feedback=True),
    "ternary, all": CodecStage("ternary", "broadcast", keep=2, feedback=True),
}
SHAPES = {
    "weights.conv.weight": (6, 4, 5, 11), "weights.head.weight": (32, 40), "weights.head.bias": (32,),
    "weights.bn.running_mean": (7,), "weights.bn.running_var": (7,), "weights.small": (3, 5), "weights.one": (),
    "weights.empty": (3, 0), "weights.none": (0, 5),
}  # fmt: skip


def told(stage):
    """Return a stage as a plan has it: without the settings that have their default values."""
    return short_table(CodecSettings({"weights": stage}))["up"]["weights"]


def array_of(value):
    """Return an array of NumPy as an array of the example."""
    return device.Array(value.dtype.name, list(value.shape), value.reshape(-1).tolist())


def arrays_of(values):
    return {name: array_of(value) for name, value in values.items()}


def drawn(dice, scale=1.0):
    found = {
        name: np.asarray(scale * dice.standard_normal(shape), np.float32) for name, shape in SHAPES.items()
    }
    found["weights.bn.running_var"] *= np.float32(1000)
    found["weights.bn.num_batches_tracked"] = np.array(dice.integers(0, 5000), np.int64)
    found["weights.mask"] = dice.integers(0, 2, 9) > 0
    found["weights.double"] = dice.standard_normal((2, 3))
    found["weights.many"] = dice.integers(-(1 << 40), 1 << 40, (4, 3))
    return found


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("seed", range(4))
def test_the_example_codes_a_kind_with_the_bytes_and_losses_of_the_product(stage, seed):
    dice = np.random.default_rng(seed)
    sent, lost = drawn(dice), {}
    for number in range(3):
        moved = drawn(dice, 10.0 ** -(number + seed))
        answer = {name: (value + moved[name]).astype(value.dtype) for name, value in sent.items()}
        answer["weights.mask"] = sent["weights.mask"] if number else ~sent["weights.mask"]
        answer["weights.conv.weight"].reshape(-1)[:50] = sent["weights.conv.weight"].reshape(-1)[:50]
        if number == 1:
            answer["weights.small"] = sent["weights.small"]
            del answer["weights.double"]
            answer["weights.new"] = moved["weights.head.weight"]
        expected = encode_kind(answer, stage, sent, lost)
        data, left = device.bundle(arrays_of(answer), told(stage), arrays_of(sent), lists_of(lost))
        assert data == expected.data
        assert {n: one for n, one in left.items() if one} == {
            n: one for n, one in lists_of(expected.residual).items() if one
        }
        lost = expected.residual


def lists_of(residual):
    return {name: value.reshape(-1).tolist() for name, value in residual.items()}


def test_an_unchanged_array_is_sent_again_if_it_has_a_rounding_loss():
    stage, sent = STAGES["ternary, feedback"], {"weights.w": np.ones((32, 40), np.float32)}
    lost = {"weights.w": np.linspace(-1, 1, 1280, dtype=np.float32).reshape(32, 40)}
    for residual in ({}, lost):
        data, _ = device.bundle(arrays_of(sent), told(stage), arrays_of(sent), lists_of(residual))
        assert data == encode_kind(sent, stage, sent, residual).data
        assert (len(data) > 10) == bool(residual)


def test_a_ternary_array_with_few_changes_keeps_no_zero():
    stage, sent = STAGES["ternary, all"], {"weights.w": np.ones((32, 40), np.float32)}
    answer = {"weights.w": sent["weights.w"].copy()}
    answer["weights.w"][3, 5:8] = 2, -3, 0.5
    data, _ = device.bundle(arrays_of(answer), told(stage), arrays_of(sent), {})
    assert data == encode_kind(answer, stage, sent, {}).data and len(data) < 30


def test_a_variance_that_float16_cannot_hold_is_sent_unchanged():
    stage, value = STAGES["int8"], {"weights.running_var": np.array([70_000, 0.1], np.float32)}
    data, _ = device.bundle(arrays_of(value), told(stage), {}, {})
    bundle = Bundle(data, [], rules_of(stage, [], None, 1000))
    assert bundle["weights.running_var"].tobytes() == value["weights.running_var"].tobytes()


def test_int8_rows_ternary_arrays_and_integers_have_the_golden_bytes():
    x, r = (np.array(GOLDEN[name], np.float32) for name in "xr")
    rows = array_of(x.reshape(4, 10))
    found = GOLDEN["int8 rows of 10, nearest"]
    assert device.int8(rows) == (bytes.fromhex(found["bytes"]), found["decoded"])
    for count in (1, 4, 10):
        found, numbers = GOLDEN[f"ternary of x - r, k {count}"], (x - r).tolist()
        kept = sorted(sorted(range(40), key=lambda i: (-abs(numbers[i]), i))[:count])
        data, read = device.ternary(numbers, kept)
        assert data.hex() == found["bytes"] and np.array_equal(r + np.float32(read), found["decoded"])
    ints = device.Array("int64", [7], [0, 1, -1, 63, 64, 300, -(1 << 40)])
    assert device.content(device.INTS, ints)[0].hex() == GOLDEN["ints 0 1 -1 63 64 300 -2^40"]


def example(folder):
    keys = BOARD._replace(holders=HOLDERS, since=0)
    made = device.Device(keys, folder, 2, 7)
    made.stages = {"weights": told(SPARSE)}
    return made


@pytest.mark.parametrize("seed", range(6))
def test_the_example_adds_the_losses_that_the_product_adds(tmp_path, seed):
    """The schedules have updates that are not used, rounds that begin again, and restarts of the device."""
    dice = random.Random(seed)
    product, mine = ProductDevice(tmp_path / "product", SPARSE), example(tmp_path / "example")
    number, took, sent = 1, None, []
    for _ in range(8):
        for phase in PHASES:
            expected = product.answer(number, phase, took)
            fields = {"took": list(took)} if took else {}
            mine.task = SimpleNamespace(round=number, phase=phase), fields
            found = mine.coded(arrays_of(trained(number, phase)), arrays_of(SHOWN))
            assert [*found] == ["weights.~"] and found["weights.~"].numbers == expected
            sent.append((number, phase))
            took = dice.choice([took, (number, phase)])
        if dice.random() < 0.3:
            mine.memory.write()
            mine = example(tmp_path / "example")
        number += dice.random() < 0.7
    assert len({*sent}) > 6


def test_a_memory_file_of_the_form_without_losses_can_be_read(tmp_path):
    (tmp_path / "memory").write_bytes(device.msgpack.packb([5, 4, 3, "spring", [], HOLDERS, 2]))
    memory = device.Memory(tmp_path / "memory", HOLDERS, 0)
    assert (memory.boot, memory.run, memory.seen, memory.lost) == (5, "spring", 2, [])


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ({"form": "rice"}, "codec form rice"),
        ({"form": "int8", "rounding": "stochastic"}, "codec rounding stochastic"),
        ({"form": "exact", "pack": True}, "codec pack True"),
        ({"form": "ternary", "against": "broadcast", "keep": 4, "feedback": True}, ""),
    ],
)
def test_the_example_names_the_codec_setting_that_it_lacks_and_leaves(tmp_path, capsys, stage, words):
    made, said = example(tmp_path), []
    made.say = lambda kind, fields, *place: said.append((kind, fields))
    plan = json.dumps({"codec": {"up": {"weights": told(CodecStage(**stage))}}}).encode()
    header = SimpleNamespace(run="spring", epoch=1)
    made.on_welcome(header, {"plan": plan, "about": {"can": ["counts", "wants"]}})
    line = f"not known to both, this device and this coordinator: {words}"
    if words:
        assert capsys.readouterr().out == f"{line}\n" and made.ended == 1
        assert said == [("bye", {"reason": line}), ("state", {"online": False, "reason": line})]
    else:
        assert made.ended == -1 and [kind for kind, _ in said] == ["hello"]
