"""The fuzz targets of coded arrays: a record of each form, bundles and deltas.

The targets with `repaired` in their names, and three of four inputs of the targets of a form, repair the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from protofleet.protocol.coding import forms
from protofleet.protocol.coding.bundle import PACKED, Bundle, Rules
from protofleet.protocol.coding.coder import encode_kind
from protofleet.protocol.coding.delta import (
    SLACK,
    apply_delta,
    body_of,
    bytes_of,
    encode_broadcast,
    join_steps,
)
from protofleet.protocol.coding.forms import Form
from protofleet.protocol.coding.stages import allowed_forms
from protofleet.protocol.coding.update import chance_of
from protofleet.protocol.settings.codec import CodecStage
from protofleet.protocol.wire.arrays import DTYPES
from tests.fuzz import repaired
from tests.fuzz.repaired import SHAPES, WHOLE, Recipe

MOST_RAW = 1 << 16  # The longest bundle without zlib, in bytes.
MOST_KEPT = 1000  # The most kept numbers of the ternary arrays of a bundle.
FORMS = tuple(Form)
BUNDLE_RULES = Rules(frozenset(Form), MOST_RAW, MOST_KEPT)
RECORD_FORMS = tuple(form for form in Form if form is not Form.SAME)
SHOWN = {
    "weights.w": np.linspace(-1, 1, 1200, dtype=np.float32).reshape(30, 40),
    "weights.b": np.linspace(0, 1, 30, dtype=np.float32),
    "weights.steps": np.array(7, np.int64),
}
SHOWN_BYTES = sum(value.nbytes for value in SHOWN.values())
SHOWN_DATA = bytes_of(SHOWN)
SHOWN_BODY = body_of(SHOWN_DATA)
SHOWN_LAYOUT = {name: SHOWN_BODY.dtype_and_shape(name) for name in SHOWN}
DELTA = CodecStage("int8", "broadcast", pack=True)
DELTAS = tuple(
    (stage, sorted(allowed_forms(stage)))
    for stage in (
        DELTA,
        CodecStage("ternary", "broadcast", keep=2, pack=True),
        CodecStage("rice", "broadcast", pack=True),
        CodecStage("uint4", "broadcast", pack=True),
        CodecStage("uint8", "broadcast", pack=True),
        CodecStage("exact", "broadcast", pack=True),
    )
)
STAGES = (
    CodecStage(pack=True),
    CodecStage("float16"),
    CodecStage("bfloat16"),
    CodecStage("int8", "broadcast"),
    CodecStage("int4"),
    CodecStage("uint8"),
    CodecStage("uint4", pack=True),
    CodecStage("rice", "broadcast"),
    CodecStage("ternary", "broadcast", keep=10),
)


def place_of(form: Form, data: bytes) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of a record, which the first byte chooses."""
    first = data[0] if data else 0
    dtype = "float32" if form in forms.FOR_FLOAT32 else WHOLE[(first >> 3) % len(WHOLE)]
    return SHAPES[first % len(SHAPES)], dtype


def record(form: Form, data: bytes) -> str:
    """Decode the content of a record; the size is repaired except in one of four inputs."""
    shape, dtype = place_of(form, data)
    content = data[1:] if data[:1] >= b"\xc0" else repaired.record(form, data[1:], shape, dtype, MOST_KEPT)
    found = forms.decode(form, content, shape, dtype, MOST_KEPT)
    assert found.shape == shape and found.dtype == DTYPES[dtype]
    return f"{form.name} {dtype} {shape}"


def record_bytes(form: Form, data: bytes) -> int:
    shape, dtype = place_of(form, data)
    return math.prod(shape) * DTYPES[dtype].itemsize


def bundle(data: bytes) -> str:
    """Decode all arrays of a bundle."""
    found = Bundle(data, list(SHOWN), BUNDLE_RULES, SHOWN_BODY)
    read = sum(found[name].nbytes for name in found)
    assert read <= 8 * MOST_RAW + SHOWN_BYTES
    return f"{len(found)} arrays, {', '.join(sorted({found.form(name).name for name in found}))}"


def bundle_repaired(data: bytes) -> str:
    return bundle(repaired.bundle(Recipe(data), SHOWN_LAYOUT, FORMS, MOST_KEPT)[0])


def bundle_packed(data: bytes) -> str:
    """Decode a bundle that is always a zlib stream; in one of 16 streams, one byte is changed."""
    first = (data[0] if data else 0) | PACKED
    packed = repaired.bundle(Recipe(bytes((first,)) + data[1:]), SHOWN_LAYOUT, FORMS, MOST_KEPT)[0]
    if data and data[-1] < 16:
        at = data[-1] * len(packed) // 16
        packed = packed[:at] + bytes((packed[at] ^ 1 << data[-1] % 8,)) + packed[at + 1 :]
    return bundle(packed)


def delta(data: bytes) -> str:
    """Apply a delta to a broadcast; the result may have at most 4 times the bytes that a bundle may have."""
    found = apply_delta(body_of(data), {"weights": DELTA}, SHOWN_BODY, len(data))
    assert len(found) <= 8 * (2 * len(data) + SLACK) + 2 * len(SHOWN_DATA)
    return f"{len(body_of(found))} arrays"


def delta_repaired(data: bytes) -> str:
    """Apply a delta of up to four steps; each step changes the arrays that the step before it made."""
    recipe = Recipe(data)
    first = recipe.byte()
    stage, allowed = DELTAS[first % len(DELTAS)]
    layout, arrays = SHOWN_LAYOUT, {}
    for place in range(1 + (first >> 6)):
        made, layout = repaired.bundle(recipe, layout, allowed, 600)
        arrays[f"weights.~{place or ''}"] = np.frombuffer(made, np.uint8)
    arrays["anchors.a"] = np.frombuffer(recipe.take(16), np.float32)
    found = body_of(apply_delta(body_of(bytes_of(arrays)), {"weights": stage}, SHOWN_BODY, MOST_RAW))
    assert recipe.is_damaged or {name: found.dtype_and_shape(name) for name in layout} == layout
    return f"{stage.form}, {1 + (first >> 6)} steps, {len(found)} arrays"


def bundle_bytes(data: bytes) -> int:
    return MOST_RAW


def delta_bytes(data: bytes) -> int:
    """Return the bytes that a bundle of a delta may have: the broadcast of these targets has MOST_RAW bytes."""
    return 2 * MOST_RAW + SLACK


def bundles() -> list[bytes]:
    changed = {name: (value * 1.5).astype(value.dtype) for name, value in SHOWN.items()}
    found = [encode_kind(changed, stage, SHOWN, {}).data for stage in STAGES]
    return [*found, encode_kind({"weights.w": SHOWN["weights.w"]}, STAGES[0], {}, {}).data]


def deltas() -> list[bytes]:
    steps, held = [], SHOWN_BODY
    for factor in (1.5, 0.5, 2.0):
        changed = {name: (value * factor).astype(value.dtype) for name, value in SHOWN.items()}
        coded = encode_broadcast(changed, {"weights": DELTA}, held, chance_of())
        steps, held = [*steps, body_of(bytes_of(coded.step))], body_of(coded.decoded)
    return [bytes_of(join_steps(steps[: place + 1])) for place in range(3)]


def recipes(steps: int = 0) -> list[bytes]:
    """Return recipes of bundles with each form, with a reference and without it.

    With `steps`, they are recipes of deltas with one to this number of steps.
    """
    dice = np.random.default_rng(0)
    found = []
    for number in range(4 * len(Form)):
        form = number % len(Form) + 128 * (number // len(Form) % 2)
        arrays = [bytes((one, number * 16 % 256, 12)) + dice.bytes(24) for one in (form, Form.EXACT, form)]
        bundle = b"".join((bytes((2 * (number // len(Form) // 2),)), *arrays))
        first = bytes((number % 64 + 64 * (number % steps),)) if steps else b""
        found.append(first + bundle * max(1, steps))
    return found


def records(form: Form) -> list[bytes]:
    """Return a valid record of each shape, once as it is and once as a recipe."""
    found = []
    for place, shape in enumerate(SHAPES):
        content = valid(form, shape)
        found += [bytes((place | 192,)) + content, bytes((place,)) + content]
    return found


def valid(form: Form, shape: tuple[int, ...]) -> bytes:
    values = np.linspace(-1, 1, math.prod(shape), dtype=np.float32).reshape(shape)
    if form is Form.TERNARY:
        return forms.encode_ternary(values, np.flatnonzero(values)[::3])
    if form in forms.FOR_FLOAT32:
        return forms.encode(form, np.abs(values))
    return forms.encode(form, (values * 100).astype(np.int64))


RECORDS: dict[str, tuple[Callable[[bytes], str], Callable[[bytes], int], Callable[[], list[bytes]]]] = {
    f"record_{form.name.lower()}": (
        partial(record, form),
        partial(record_bytes, form),
        partial(records, form),
    )
    for form in RECORD_FORMS
}
BUNDLES: dict[str, tuple[Callable[[bytes], str], Callable[[], list[bytes]]]] = {
    "bundle": (bundle, bundles),
    "bundle_repaired": (bundle_repaired, recipes),
    "bundle_packed": (bundle_packed, recipes),
    "delta": (delta, deltas),
    "delta_repaired": (delta_repaired, partial(recipes, steps=4)),
}
