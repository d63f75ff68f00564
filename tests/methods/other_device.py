"""A simulated device that is not the CPU, for machines without a GPU: its tensors have a place and keep their values.

It uses torch's device "meta". The tensors of "meta" usually have no values; under `other_device()` they have values.
As on a GPU, an operation fails if its tensors are in two places, except for single numbers and indices, and a value
is read by `item()` or after `.cpu()`. So a test finds a tensor that a method forgot to move, and can compare the
results of the method bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

PLACE = torch.device("meta")
aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default}  # These copy from one place to another.
# Operations whose indices may be on the CPU.
TAKE_INDICES = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}

NO_NUMBERS = {aten.cat.default, aten.stack.default}  # They accept no single number on the CPU.


class There(torch.Tensor):
    """A tensor on the other device."""

    value: torch.Tensor

    @staticmethod
    def __new__(cls, value: torch.Tensor) -> There:
        made = torch.Tensor._make_wrapper_subclass(
            cls, value.shape, strides=value.stride(), storage_offset=value.storage_offset(), dtype=value.dtype,
            device=PLACE, requires_grad=value.requires_grad,
        )  # fmt: skip
        made.value = value
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__bool__, torch.Tensor.__float__,
                    torch.Tensor.__int__, torch.Tensor.__index__):  # fmt: skip
            return func(args[0].value)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    def __repr__(self) -> str:
        return f"There({self.value!r})"


class Mode(TorchDispatchMode):
    """A dispatch mode that also handles tensors that are created on the other device or moved to it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class FromData(TorchFunctionMode):
    """A function mode for tensors made from Python's numbers.

    torch makes these tensors on the CPU and moves them before it calls any dispatch mode.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.Tensor.new_tensor and isinstance(args[0], There):
            return args[0].value.new_tensor(*args[1:], **kwargs).to(PLACE)
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu") == PLACE:
            return func(*args, **{**kwargs, "device": None}).to(PLACE)
        return func(*args, **kwargs)


def run(func, args, kwargs):
    tensors = leaves((args, kwargs))
    there = any(isinstance(tensor, There) for tensor in tensors)
    if there and func not in COPIES:
        demand_one_place(func, args, kwargs)
    wished = kwargs.get("device")
    if func is aten.copy_.default:
        there = isinstance(args[0], There)
    elif wished is not None:
        there, kwargs = torch.device(wished) == PLACE, {**kwargs, "device": torch.device("cpu")}
    if there and kwargs.get("generator") is not None:
        raise AssertionError(f"{func} draws on the other device from a generator of the CPU")
    result = func(*tree_map(bare, args), **tree_map(bare, kwargs))
    own = {id(t.value): t for t in tensors if isinstance(t, There)}
    return tree_map(lambda x: placed(x, there, own), result)


def leaves(tree):
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def demand_one_place(func, args, kwargs):
    if func in TAKE_INDICES:
        args = (args[0], *args[2:])
    here = [t for t in leaves((args, kwargs)) if not isinstance(t, There) and (t.dim() or func in NO_NUMBERS)]
    if here:
        raise AssertionError(f"{func} has tensors in two places: {[tuple(t.shape) for t in here]} on the CPU")


def bare(leaf):
    return leaf.value if isinstance(leaf, There) else leaf


def placed(leaf, there, own):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if id(leaf) in own:  # The operation changed this tensor in place.
        return own[id(leaf)]
    return There(leaf) if there else leaf


@contextmanager
def other_device() -> Iterator[torch.device]:
    with Mode(), FromData():
        yield PLACE
