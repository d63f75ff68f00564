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

# A vector, or an array with fewer numbers than this, is a small array. The difference of a small array is coded as
# int8, except if the stage has a form of 16 bits. Small arrays take few of the bytes, but errors in them matter.
SMALL: Final = 1 << 10
# A rounded variance of a batch norm may become zero or negative, so these arrays are sent as float16.
STATISTICS: Final = ("running_mean", "running_var")

HALVES: Final = ("float16", "bfloat16")

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Encoded:
    """A bundle, and what rounding has lost: the residual of each array whose stage has feedback."""

    data: bytes
    residual: dict[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """The form of an array, and the numbers to code in it."""

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
    All numbers must be finite.
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


def choose(
    name: str, value: Array, stage: CodecStage, reference: Array | None, residual: Array | None
) -> Choice:
    """Return the form of an array in a stage, by the array's own dtype, shape and numbers."""
    held = reference if stage.against == BROADCAST and _is_like(reference, value) else None
    if held is not None and _equal(held, value) and not _is_open(residual, value, stage):
        return Choice(Form.SAME, value, True)
    if value.dtype.kind in "iub":
        return _whole(value, held)
    if value.dtype != np.float32 or not stage.rounds:
        return Choice(Form.PLANES if stage.pack else Form.EXACT, value, False)
    if name.rpartition(".")[2] in STATISTICS:
        return Choice(_half(value, stage), value, False)
    if held is None:
        return _without_reference(value, stage)
    difference = _difference(value, held, residual if stage.feedback else None)
    if not np.isfinite(difference).all():  # the difference of two huge numbers may overflow
        return Choice(Form.EXACT, value, False)
    small = value.size < SMALL or value.ndim < 2
    form = Form.INT8 if small and stage.form not in HALVES else _form(stage, difference)
    return Choice(form, difference, True, stage.feedback)


def _difference(value: Array, held: Array, residual: Array | None) -> Floats:
    with np.errstate(over="ignore"):
        difference: Floats = np.subtract(value, held, dtype=np.float32)
    if residual is not None and _is_like(residual, value):
        difference += np.asarray(residual, np.float32)
    return difference


def _without_reference(value: Array, stage: CodecStage) -> Choice:
    """Return the choice for an array that is not coded as a difference from a reference.

    If the stage does not use a reference, its form is used for small matrices too. The reason is that the prototypes
    of ten classes are a small matrix.
    """
    if stage.against == BROADCAST or value.ndim < 2:
        return Choice(_half(value, stage), value, False)
    return Choice(_form(stage, value), value, False)


def _form(stage: CodecStage, values: Array) -> Form:
    match stage.form:
        case form if form in HALVES:
            return _half(values, stage)
        case "uint8" | "uint4":
            signed = bool((np.asarray(values, np.float32) < 0).any())
            return Form[stage.form.upper().removeprefix("U") if signed else stage.form.upper()]
    return Form[stage.form.upper()]


def _half(values: Array, stage: CodecStage) -> Form:
    """Return a form of 16 bits whose range contains all numbers, or EXACT if the numbers are too large."""
    if stage.form != "bfloat16" and np.isfinite(float16_of(values)).all():
        return Form.FLOAT16
    return Form.BFLOAT16 if np.isfinite(from_bfloat16(bfloat16_of(values))).all() else Form.EXACT


def _whole(value: Array, held: Array | None) -> Choice:
    """Return the form of whole numbers or bools that takes the fewest bytes."""
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
    """Return the numbers that should have been coded minus those that a reader decodes."""
    lost = np.array(choice.values, np.float32).reshape(-1)
    for piece, content in zip(forms.pieces(choice.values.shape), coded.contents, strict=True):
        decoded = forms.decode(coded.form, content, piece.shape, "float32", piece.stop - piece.start)
        lost[piece.start : piece.stop] -= np.asarray(decoded, np.float32).reshape(-1)
    return lost.reshape(choice.values.shape)


def rules_of(stage: CodecStage, names: Iterable[str], reference: SlicedArrays | None, most_raw: int) -> Rules:
    """Return the rules for the reader of a bundle; `names` are the arrays of its kind in `reference`."""
    sizes = (
        ternary_numbers(name, *reference.dtype_and_shape(name)) for name in names if reference is not None
    )
    most = most_kept(sum(sizes), stage) if stage.form == TERNARY else 0
    return Rules(allowed_forms(stage), most_raw, most, stage.pack)


def ternary_numbers(name: str, dtype: str, shape: tuple[int, ...]) -> int:
    """Return how many numbers an array has, or 0 if a ternary stage does not code this array as ternary."""
    count = math.prod(shape)
    is_small = count < SMALL or len(shape) < 2 or name.rpartition(".")[2] in STATISTICS
    return 0 if is_small or dtype != "float32" else count


def most_kept(numbers: int, stage: CodecStage) -> int:
    """Return how many numbers a ternary stage keeps if its arrays have `numbers` numbers."""
    return max(1, numbers // stage.keep)
