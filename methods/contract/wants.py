"""Specifications of the arrays that a device must return.

The server half states the specifications in its task. They are checked before a method gets a reply.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from protofleet.protocol.wire.messages import ArraySpec
from protofleet.protocol.wire.reasons import Problem, Reason

OPTIONAL = "optional"
SUM = "sum<=examples"
ROWS = "rows<=examples"
AT_LEAST_TWO = ">=2 where repeated: "
MULTIPLE = "most, or a multiple of "
ROW_NORM = "row norm<="

# Count of numbers in a slice. Checks work in slices, because an array may be as large as a whole data set.
SLICE = 1 << 17

# A number is a fixed length. A name is a free length; dimensions with the same name have the same length.
Dim: TypeAlias = int | str

ITEM_BYTES: dict[str, int] = {
    name: getattr(torch, name).itemsize
    for name in ("float32", "float16", "float64", "int64", "int32", "uint8", "bool")
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The shape, the type and the bounds of an array that a device must return."""

    shape: tuple[Dim, ...]
    dtype: str = "float32"
    low: float | None = None
    high: float | None = None
    most: int = 1 << 20  # The largest length that a named dimension may have.
    optional: bool = False
    # True if the numbers count samples. Then their sum must not exceed the number of examples of the device.
    of_examples: bool = False
    # False if the coordinator must not lower these counts of samples on their own. The method then counts a device's
    # samples by the examples of its Reply, which the coordinator lowers in any case (`policy.weight_cap`).
    capped: bool = True
    # True if each row is a sample. Then the array must not have more rows than the device has examples.
    row_per_example: bool = False
    # Name of another array, such as "labels". If the other array has the same value in several rows, this array must
    # have numbers of at least 2 in the same rows.
    repeated: str = ""
    # If not 0, the largest Euclidean norm that a row (all numbers with the same first index) may have.
    row_norm: float = 0.0
    step: int = 0  # If not 0, the length of a named dimension must be `most`, or 1, 2, 3 ... times `step`.

    def most_bytes(self) -> int:
        """Return the size in bytes of the largest allowed array."""
        lengths = [self.most if isinstance(d, str) else d for d in self.shape]
        return math.prod(lengths) * ITEM_BYTES[self.dtype]

    @property
    def rules(self) -> tuple[str, ...]:
        """Return all rules except shape, type and bounds; each rule is a word of the protocol, such as `optional`."""
        said = {OPTIONAL: self.optional, SUM: self.of_examples, ROWS: self.row_per_example}
        rules = tuple(rule for rule, holds in said.items() if holds)
        rules = (*rules, f"{MULTIPLE}{self.step}") if self.step else rules
        rules = (*rules, f"{ROW_NORM}{self.row_norm}") if self.row_norm else rules
        return (*rules, AT_LEAST_TWO + self.repeated) if self.repeated else rules

    @property
    def is_float(self) -> bool:
        """Return whether the numbers of the array are floating-point numbers."""
        return self.dtype.startswith("float")


def table_of(
    wants: Mapping[str, TensorSpec], payload: Mapping[str, Tensor], norm: float
) -> tuple[ArraySpec, ...]:
    """Return the rules that `problem_with` checks, as rows of a table.

    With this table, a device program can check its arrays without knowing the method. The rule of an array is
    the first row whose name fits the name of the array. A `*` in the name of a row stands for any letters. But a
    row with a `*` applies only to arrays that are also in the broadcast.
    """
    alike = {
        name: _row(spec, norm, alike=True)
        for name, spec in wants.items()
        if comes_back(spec, payload.get(name))
    }
    exact = {name: _row(spec, norm, alike=False) for name, spec in wants.items() if name not in alike}
    patterns: dict[str, ArraySpec] = {}
    for prefix in sorted({name.partition(".")[0] for name in alike}):
        mine = {name: row for name, row in alike.items() if name.partition(".")[0] == prefix}
        sent = {name for name in payload if name.partition(".")[0] == prefix}
        patterns |= _patterns(prefix, mine) if sent - exact.keys() == mine.keys() and len(mine) > 1 else mine
    ordered = sorted(patterns, key=lambda name: (name.count("*"), -len(name), name))
    return tuple(
        replace(row, name=name) for name, row in (*exact.items(), *((n, patterns[n]) for n in ordered))
    )


def comes_back(spec: TensorSpec, sent: Tensor | None) -> bool:
    return sent is not None and (dtype_name(sent), tuple(sent.shape)) == (spec.dtype, spec.shape)


def _row(spec: TensorSpec, norm: float, alike: bool) -> ArraySpec:
    free = any(isinstance(dim, str) for dim in spec.shape)
    bound = norm if spec.is_float and math.isfinite(norm) else None
    return ArraySpec(
        "", None if alike else spec.dtype, None if alike else spec.shape, spec.most if free else None, spec.low,
        spec.high, bound, spec.is_float, spec.rules,
    )  # fmt: skip


def _patterns(prefix: str, rows: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
    """Return a short list of rows that describes all arrays under `prefix`.

    The first row is the most frequent row, and stands for most arrays. The arrays are grouped by the last part of
    their names. If all arrays of a group have the same row, which differs from the first row, one row stands for the
    group. If the rows in a group differ, each array of the group has its own row.
    """
    counts = Counter(rows.values())
    usual = max(counts, key=lambda row: (counts[row], repr(row)))
    found = {f"{prefix}.*": usual}
    by_end: dict[str, dict[str, ArraySpec]] = {}
    for name, row in rows.items():
        by_end.setdefault(name.rpartition(".")[2], {})[name] = row
    for end, named in by_end.items():
        if set(named.values()) == {usual}:
            continue
        whole = len(set(named.values())) == 1 and all(name.count(".") > 1 for name in named)
        found |= {f"{prefix}.*.{end}": next(iter(named.values()))} if whole else named
    return found


def dtype_name(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def like(payload: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """Return specifications with the names, shapes and dtypes of these tensors, for arrays that are averaged."""
    return {name: TensorSpec(tuple(v.shape), dtype_name(v)) for name, v in payload.items()}


@runtime_checkable
class Sliced(Protocol):
    """A payload that may be on the disk; its dtypes and shapes are known before any number is read."""

    def dtype_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]: ...
    def flat(self, name: str, start: int, stop: int) -> Tensor: ...


@dataclass
class InMemory:
    """A payload of tensors in memory, in the form that the checks need."""

    payload: Mapping[str, Tensor]

    def dtype_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]:
        value = self.payload[name]
        return dtype_name(value), tuple(value.shape)

    def flat(self, name: str, start: int, stop: int) -> Tensor:
        return self.payload[name].reshape(-1)[start:stop]


def sliced(payload: Mapping[str, Tensor]) -> Sliced:
    """Return the payload in the form that the checks need."""
    return payload if isinstance(payload, Sliced) else InMemory(payload)


def problem_with(
    wants: Mapping[str, TensorSpec],
    payload: Mapping[str, Tensor],
    examples: int | None = None,
    norm: float = math.inf,
) -> Problem | None:
    """Return the first problem of a reply, or None.

    `examples` is the number of examples that the device has stated. `norm` is the largest Euclidean norm that
    an array may have.

    All dtypes and shapes are checked before the first number is read. Numbers are checked one slice at a
    time.
    """
    if extra := sorted(set(payload) - set(wants)):
        return Problem(Reason.WRONG_ARRAYS, f"{extra[0][:64]} was not asked for")
    if missing := [name for name, spec in wants.items() if name not in payload and not spec.optional]:
        return Problem(Reason.WRONG_ARRAYS, f"no {missing[0]}")
    sent = sliced(payload)
    lengths: dict[str, int] = {}
    here = {name: spec for name, spec in wants.items() if name in payload}
    for name, spec in here.items():
        dtype, shape = sent.dtype_and_shape(name)
        if problem := _shape_problem(name, spec, dtype, shape, lengths):
            return problem
        if problem := _rows_problem(name, spec, shape, examples):
            return problem
    for name, spec in here.items():
        if problem := _numbers_problem(name, spec, sent, examples, norm):
            return problem
        if spec.row_norm and (problem := _row_norm_problem(name, spec.row_norm, sent)):
            return problem
    for name, spec in here.items():
        if spec.repeated and (problem := _repeated_problem(name, payload[name], spec.repeated, payload)):
            return problem
    return None


def problem_with_forms(wants: Mapping[str, TensorSpec], payload: Mapping[str, Tensor]) -> Problem | None:
    """Return a problem if an array is missing or lacks the required dtype, shape or range; otherwise None.

    The arrays are not checked for NaN.
    """
    if missing := [name for name in wants if name not in payload]:
        return Problem(Reason.WRONG_ARRAYS, f"no {missing[0]}")
    sent, lengths = InMemory(payload), dict[str, int]()
    for name, spec in wants.items():
        if problem := _shape_problem(name, spec, *sent.dtype_and_shape(name), lengths):
            return problem
    bounded = {name: spec for name, spec in wants.items() if spec.low is not None or spec.high is not None}
    found = (_numbers_problem(name, spec, sent, None, math.inf) for name, spec in bounded.items())
    return next((problem for problem in found if problem), None)


def not_finite(payload: Mapping[str, Tensor]) -> Problem | None:
    """Return a problem if an array contains NaN or an infinity; otherwise None."""
    sent = sliced(payload)
    whole = TensorSpec(())
    return next((p for name in payload if (p := _numbers_problem(name, whole, sent, None, math.inf))), None)


def _repeated_problem(name: str, values: Tensor, other: str, payload: Mapping[str, Tensor]) -> Problem | None:
    keys = payload[other]
    several = keys.bincount() > 1
    if not len(alone := keys[several[keys] & (values < 2)]):
        return None
    message = f"{other} has {int(alone[0])} in several rows, in one of which {name} is below 2"
    return Problem(Reason.BAD_CLAIM, message)


def _shape_problem(
    name: str, spec: TensorSpec, dtype: str, shape: tuple[int, ...], lengths: dict[str, int]
) -> Problem | None:
    if dtype != spec.dtype:
        return Problem(Reason.WRONG_DTYPE, f"{name} is {dtype}, not {spec.dtype}")
    if len(shape) != len(spec.shape):
        return Problem(Reason.WRONG_SHAPE, f"{name} is {shape}, not {spec.shape}")
    for length, dim in zip(shape, spec.shape, strict=True):
        expected = lengths.setdefault(dim, length) if isinstance(dim, str) else dim
        if length != expected:
            where = f" with {dim} = {expected}" if isinstance(dim, str) else ""
            return Problem(Reason.WRONG_SHAPE, f"{name} is {shape}, not {spec.shape}{where}")
        if isinstance(dim, str) and length > spec.most:
            return Problem(Reason.WRONG_SHAPE, f"{name} is {shape}, over the limit of {spec.most} for {dim}")
        if isinstance(dim, str) and spec.step and length != spec.most and (not length or length % spec.step):
            words = f"{dim} must be {spec.most} or a multiple of {spec.step}"
            return Problem(Reason.WRONG_SHAPE, f"{name} is {shape}, and {words}")
    return None


def _rows_problem(
    name: str, spec: TensorSpec, shape: tuple[int, ...], examples: int | None
) -> Problem | None:
    if not spec.row_per_example or examples is None or shape[0] <= examples:
        return None
    return Problem(Reason.BAD_CLAIM, f"{name} has {shape[0]} rows, of a device with {examples} examples")


def norm_of(values: Tensor) -> float:
    """Return the Euclidean norm, which is finite if all numbers are finite (except for float64 above 1e150).

    The norm takes a sixth of the time of `isfinite().all()`, because `isfinite().all()` makes three more tensors.
    """
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


def _numbers_problem(
    name: str, spec: TensorSpec, sent: Sliced, examples: int | None, norm: float
) -> Problem | None:
    low, high, total, square = math.inf, -math.inf, 0, 0.0
    size = math.prod(sent.dtype_and_shape(name)[1])
    for start in range(0, size, SLICE):
        part = sent.flat(name, start, min(start + SLICE, size))
        if part.is_floating_point():
            if not math.isfinite(length := norm_of(part)) and not bool(part.isfinite().all()):
                return Problem(Reason.NOT_FINITE, f"{name} is not finite")
            square += length * length
        if spec.low is not None:
            low = min(low, float(part.min()))
        if spec.high is not None:
            high = max(high, float(part.max()))
        total += int(part.sum()) if spec.of_examples else 0
    if spec.low is not None and low < spec.low:
        return Problem(Reason.OUT_OF_BOUNDS, f"{name} has {low:g}, below {spec.low:g}")
    if spec.high is not None and high > spec.high:
        return Problem(Reason.OUT_OF_BOUNDS, f"{name} has {high:g}, above {spec.high:g}")
    if math.sqrt(square) > norm:
        return Problem(Reason.OUT_OF_BOUNDS, f"{name} has a norm of {math.sqrt(square):g}, above {norm:g}")
    if spec.of_examples and examples is not None and total > examples:
        return Problem(Reason.BAD_CLAIM, f"{name} add up to {total}, of a device with {examples} examples")
    return None


def _row_norm_problem(name: str, most: float, sent: Sliced) -> Problem | None:
    rows, *other = sent.dtype_and_shape(name)[1]
    width = math.prod(other)
    step = max(1, SLICE // max(1, width))
    for start in range(0, rows, step):
        part = sent.flat(name, start * width, min(start + step, rows) * width).reshape(-1, width)
        norms = torch.linalg.vector_norm(part, dim=1, dtype=torch.float64)
        if bool((norms > most).any()):
            words = f"{name} has a row with a norm of {float(norms.max()):g}, above {most:g}"
            return Problem(Reason.OUT_OF_BOUNDS, words)
    return None


def most_bytes(wants: Mapping[str, TensorSpec]) -> int:
    """Return the size in bytes of the largest body of a correct update, with the table at its start."""
    table = sum(len(name) + 64 for name in wants) + 64
    return table + sum(spec.most_bytes() for spec in wants.values())
