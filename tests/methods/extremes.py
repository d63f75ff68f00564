"""Answers at the limits of what an ask allows, made only from its wants and without the name of the method."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from protofleet.methods.contract.base import Ask, Member, Method
from protofleet.methods.contract.wants import TensorSpec

SMALLEST, LARGEST = 1e-45, float(torch.finfo(torch.float32).max)
FILLS = ("zero", "smallest", "most", "least", "one number", "signs", "noise")


def any_settings(method: Method, dice: random.Random, known: Mapping[str, Any]) -> dict[str, Any]:
    """Draw a value for each setting that has only a few values.

    If the drawn values exclude each other, return the known settings unchanged.
    """
    hints = get_type_hints(method.Hyper)
    drawn = dict(known)
    for name in (f.name for f in fields(method.Hyper) if f.name not in known):
        if get_origin(hints[name]) is Literal:
            drawn[name] = dice.choice(get_args(hints[name]))
        elif hints[name] is bool:
            drawn[name] = dice.random() < 0.5
    try:
        method.Hyper(**drawn)
    except ValueError:
        return dict(known)
    return drawn


def any_member(name: str, classes: int, dice: random.Random, most: int) -> Member:
    """Return a member with 0, 1, 2, 7 or `most` examples, all of one class or spread over all classes."""
    examples = dice.choice((0, 1, 2, 7, most))
    counts = [0] * classes
    if dice.random() < 0.5:
        counts[dice.randrange(classes)] = examples
    else:
        for i in range(examples):
            counts[i % classes] += 1
    return Member(name, examples, tuple(counts))


def any_answer(ask: Ask, member: Member, dice: random.Random, norm: float) -> dict[str, Tensor]:
    rows: dict[str, int] = {}
    fill, made = dice.choice(FILLS), {}
    for name, want in ask.wants.items():
        if want.optional and dice.random() < 0.5:
            continue
        shape = [
            rows.setdefault(d, any_length(want, member, dice)) if isinstance(d, str) else d
            for d in want.shape
        ]
        made[name] = filled(shape, want, fill, member, dice, norm)
    return made


def any_length(want: TensorSpec, member: Member, dice: random.Random) -> int:
    if want.step:
        return dice.choice((want.most, *range(want.step, want.most, want.step)))
    most = min(want.most, member.examples)
    return min(most, dice.choice((0, 1, 2, most // 2, most)))


def filled(
    shape: list[int], want: TensorSpec, fill: str, member: Member, dice: random.Random, norm: float
) -> Tensor:
    if want.of_examples:
        return shares(shape[0], member.examples, dice).to(getattr(torch, want.dtype))
    if want.dtype in ("float32", "float16", "float64"):
        return within(numbers(shape, fill, dice, norm), want).to(getattr(torch, want.dtype))
    if want.dtype == "bool":
        return torch.full(shape, dice.random() < 0.5)
    low, high = int(want.low or 0), int(want.high if want.high is not None else 2**62)
    ends = (lambda: low), (lambda: high), (lambda: dice.randint(low, high))
    draw = dice.choice(ends)
    return torch.tensor([draw() for _ in range(math.prod(shape))], dtype=getattr(torch, want.dtype)).reshape(
        shape
    )


def shares(rows: int, examples: int, dice: random.Random) -> Tensor:
    """Return whole numbers of at least 1 whose sum is not more than the examples."""
    counts = torch.ones(rows, dtype=torch.int64)
    if rows:
        counts[dice.randrange(rows)] += examples - rows
    if rows and dice.random() < 0.5:
        counts = torch.full((rows,), examples // rows, dtype=torch.int64)
    return counts


def numbers(shape: list[int], fill: str, dice: random.Random, norm: float) -> Tensor:
    size = max(math.prod(shape), 1)
    most = min(0.999 * norm / math.sqrt(size), LARGEST)
    match fill:
        case "zero":
            return torch.zeros(shape)
        case "smallest":
            return torch.full(shape, SMALLEST)
        case "most":
            return torch.full(shape, most)
        case "least":
            return torch.full(shape, -most)
        case "one number":
            made = torch.zeros(shape)
            made.view(-1)[:1] = min(0.999 * norm, LARGEST)
            return made
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(dice.randrange(2**31)))
    return noise.sign() * most if fill == "signs" else noise


def within(made: Tensor, want: TensorSpec) -> Tensor:
    return made.clamp(want.low, want.high) if (want.low, want.high) != (None, None) else made
