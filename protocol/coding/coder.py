"""Code the arrays of one kind as their stage says: choose forms, write the bundle, and keep the rounding errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from protofleet.protocol.coding import forms, ternary
from protofleet.protocol.coding.bits import Whole
from protofleet.protocol.coding.bundle import Coded, Rules, dtype_of, write_bundle
from protofleet.protocol.coding.floats import Floats, bfloat16_of, float16_of, from_bfloat16
from protofleet.protocol.coding.forms import Form
from protofleet.protocol.coding.stages import allowed_forms
from protofleet.protocol.settings.codec import BROADCAST, STOCHASTIC, TERNARY, CodecStage
from protofleet.protocol.wire.arrays import SlicedArrays
from protofleet.protocol.wire.messages import Array

# Vectors, and all arrays with fewer numbers than this, are small arrays. Their rounding errors matter, and they take
# few of the bytes. So their differences are coded as int8, or in 16 bits if the form of the stage has 16 bits.
SMALL: Final = 1 << 10
# A rounded variance of a batch norm may become zero or negative, so these arrays are sent as float16.
STATISTICS: Final = ("running_mean", "running_var")

HALVES: Final = ("float16", "bfloat16")

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Encoded:
    """A bundle, and the residual (rounding error) of each array whose stage has feedback."""

    data: bytes
    residual: dict[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """The form of an array, and the numbers that are coded in this form."""

    form: Form
    values: Array
    is_difference: bool
    has_feedback: bool = False


def encode_kind(
    arrays: Arrays,
    stage: CodecStage,
    reference: Arrays,
    residual: Arrays,
    chance: np.random.Generator | None = None,
) -> Encoded:
    """Code the arrays of one kind.

    `reference` are the arrays of the task's broadcast, which the reader has too. `residual` is what rounding lost in
    the last update; a residual of another shape is dropped. `chance` is needed if the stage rounds stochastically.
    """
    chance = chance if stage.rounding == STOCHASTIC else None
    chosen = {
        name: choose(name, value, stage, reference.get(name), residual.get(name))
        for name, value in sorted(arrays.items())
    }
    kept = _kept(chosen, stage)
    coded, lost = {}, {}
    for name, choice in chosen.items():
        coded[name] = _coded(arrays[name], choice, kept.get(name), chance)
        if choice.has_feedback:
            lost[name] = _lost(choice, coded[name])
    return Encoded(write_bundle(coded, list(reference), stage.pack), lost)


def planned_form(name: str, dtype: str, shape: tuple[int, ...], referred: bool, stage: CodecStage) -> Form:
    """Return the form of an array in a stage, as far as it follows from the array's name, dtype and shape.

    `referred` is true if the reference has an array of this name, dtype and shape. The numbers of an array may need
    another form (see `choose`).
    """
    if dtype != "float32" or not stage.rounds:
        return Form.PLANES if stage.pack else Form.EXACT
    half = Form.BFLOAT16 if stage.form == "bfloat16" else Form.FLOAT16
    is_small = math.prod(shape) < SMALL or len(shape) < 2
    if is_statistic(name) or (stage.against == BROADCAST and not referred):
        return half
    if stage.against != BROADCAST and len(shape) < 2:
        return half
    if stage.against == BROADCAST and is_small and stage.form not in HALVES:
        return Form.INT8
    return Form[stage.form.upper()]


def is_statistic(name: str) -> bool:
    return name.rpartition(".")[2] in STATISTICS


def choose(
    name: str, value: Array, stage: CodecStage, reference: Array | None, residual: Array | None
) -> Choice:
    """Return the form of an array, and the numbers to code: the array itself, or its difference from the reference.

    If the array is not finite, its rounding errors are not kept, because a reader refuses the array.
    """
    held = reference if stage.against == BROADCAST and _is_like(reference, value) else None
    if held is not None and _equal(held, value) and not _is_open(residual, value, stage):
        return Choice(Form.SAME, value, True)
    if value.dtype.kind in "iub":
        return _whole(value, held)
    form = planned_form(name, dtype_of(value), value.shape, held is not None, stage)
    if form in forms.LOSSLESS:
        return Choice(form, value, False)
    is_difference = held is not None and not is_statistic(name)
    values = value
    if held is not None and is_difference:
        values = _difference(value, held, residual if stage.feedback else None)
    if not np.isfinite(value).all():
        return Choice(form, values, is_difference)
    form = _form_for(values, form)
    if form is Form.EXACT:
        return Choice(form, value, False)
    return Choice(form, values, is_difference, is_difference and stage.feedback)


def _form_for(values: Array, planned: Form) -> Form:
    """Return the planned form, or the next form that can hold these numbers; EXACT can hold all numbers."""
    if not np.isfinite(values).all():  # the difference of two huge numbers may overflow
        return Form.EXACT
    if planned in (Form.UINT8, Form.UINT4) and (np.asarray(values, np.float32) < 0).any():
        return Form.INT8 if planned is Form.UINT8 else Form.INT4
    if planned is Form.FLOAT16 and not np.isfinite(float16_of(values)).all():
        planned = Form.BFLOAT16
    if planned is Form.BFLOAT16 and not np.isfinite(from_bfloat16(bfloat16_of(values))).all():
        return Form.EXACT
    return planned


def _difference(value: Array, held: Array, residual: Array | None) -> Floats:
    with np.errstate(over="ignore"):
        difference: Floats = np.subtract(value, held, dtype=np.float32)
    if residual is not None and _is_like(residual, value):
        difference += np.asarray(residual, np.float32)
    return difference


def _whole(value: Array, held: Array | None) -> Choice:
    """Choose the form that codes an array of whole numbers or bools in the fewest bytes."""
    choices = [Choice(Form.EXACT, value, False), Choice(Form.INTS, value, False)]
    if held is not None and value.dtype != np.bool_:
        choices.append(Choice(Form.INTS, np.subtract(value, held), True))
    return min(choices, key=lambda one: len(forms.encode(one.form, one.values)))


def _is_like(one: Array | None, other: Array) -> bool:
    return one is not None and one.shape == other.shape and one.dtype == other.dtype


def _equal(one: Array, other: Array) -> bool:
    """Return whether two arrays have the same bits; 0.0 and -0.0 differ."""
    return one.tobytes() == other.tobytes()


def _is_open(residual: Array | None, value: Array, stage: CodecStage) -> bool:
    return stage.feedback and _is_like(residual, value) and bool(np.any(residual))


def _kept(chosen: Mapping[str, Choice], stage: CodecStage) -> dict[str, Whole]:
    """Return the positions of the numbers that are kept in each ternary array.

    One threshold is used for all ternary arrays together.
    """
    names = [name for name, choice in chosen.items() if choice.form is Form.TERNARY]
    if not names:
        return {}
    flat = [np.asarray(chosen[name].values, np.float32).reshape(-1) for name in names]
    total = sum(len(values) for values in flat)
    return dict(zip(names, ternary.largest(flat, most_kept(total, stage)), strict=True))


def _coded(value: Array, choice: Choice, kept: Whole | None, chance: np.random.Generator | None) -> Coded:
    contents, flat = [], choice.values.reshape(-1)
    for piece in forms.pieces(value.shape):
        part = flat[piece.start : piece.stop].reshape(piece.shape)
        if kept is None:
            contents.append(forms.encode(choice.form, part, chance))
        else:
            low, high = np.searchsorted(kept, (piece.start, piece.stop))
            contents.append(forms.encode_ternary(part, kept[low:high] - piece.start))
    if choice.is_difference:
        return Coded(choice.form, tuple(contents))
    return Coded(choice.form, tuple(contents), dtype_of(value), value.shape)


def _lost(choice: Choice, coded: Coded) -> Floats:
    """Return the error of the coding: the original numbers minus the numbers that a reader decodes."""
    lost = np.array(choice.values, np.float32).reshape(-1)
    for piece, content in zip(forms.pieces(choice.values.shape), coded.contents, strict=True):
        decoded = forms.decode(coded.form, content, piece.shape, "float32", piece.stop - piece.start)
        lost[piece.start : piece.stop] -= np.asarray(decoded, np.float32).reshape(-1)
    return lost.reshape(choice.values.shape)


def rules_of(stage: CodecStage, names: Iterable[str], reference: SlicedArrays | None, most_raw: int) -> Rules:
    """Return the rules for the reader of a bundle; `names` names the arrays of `reference` with the bundle's kind."""
    most = 0
    if stage.form == TERNARY and reference is not None:
        expected = ((name, *reference.dtype_and_shape(name)) for name in names)
        most = most_kept(
            sum(math.prod(one[2]) for one in expected if planned_form(*one, True, stage) is Form.TERNARY),
            stage,
        )
    return Rules(allowed_forms(stage), most_raw, most, stage.pack)


def most_kept(numbers: int, stage: CodecStage) -> int:
    """Return the number of kept numbers if a ternary stage codes `numbers` numbers."""
    return max(1, numbers // stage.keep)
