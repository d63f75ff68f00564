"""Find the attributes of a half that restore(state()) loses, for an error message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import torch
from torch import nn

MOST: Final = 3  # Maximum number of attributes that a message names.


def lost(one: object, again: object) -> str:
    """Return the names of the attributes that differ between a half and its restored copy; "" if none differs.

    A name is, for example, `self.velocity`. A cache may differ although no state was lost. Therefore callers
    use this function only if the two halves give different results.
    """
    found = [name for name, value in vars(one).items() if not same(value, vars(again).get(name))]
    # The model is named only if nothing else differs, because any lost attribute also changes the model.
    telling = [name for name in found if name != "model"] or found
    return ", ".join(f"self.{name}" for name in telling[:MOST])


def same(one: object, other: object) -> bool:
    """Return whether two values are equal.

    Functions, data sets and open files cannot be compared, so this function treats them as equal.
    """
    a, b = list(leaves(one)), list(leaves(other))
    return len(a) == len(b) and all(
        key == also and alike(value, again) for (key, value), (also, again) in zip(a, b, strict=True)
    )


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def leaves(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors, numbers and texts at any depth of a value."""
    if isinstance(value, torch.Tensor | int | float | str | bytes):
        yield path, value
    elif isinstance(value, torch.Generator):
        yield path, value.get_state()
    else:
        for key, part in parts(value):
            yield from leaves(part, f"{path}/{key}")


def parts(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, nn.Module):
        yield from value.state_dict().items()
    elif isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, Sequence | set | frozenset):
        yield from enumerate(value if isinstance(value, Sequence) else sorted(value, key=repr))
    elif is_dataclass(value):
        yield from ((f.name, getattr(value, f.name)) for f in fields(value))
