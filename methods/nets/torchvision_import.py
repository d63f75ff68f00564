"""Importing torchvision beside any torch, also where its compiled operators do not load.

A torchvision built for another torch (a CUDA wheel beside a CPU-only or a vendor's torch) tolerates that its
extension does not load, and then describes `torchvision::nms` all the same, which fails: "operator
torchvision::nms does not exist". Declaring the two operators that it describes is enough. They stay without
code, so detection ops raise when called; networks, transforms and data sets need none of them.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
OPERATORS = ("nms", "qnms")


def import_torchvision() -> ModuleType:
    """The torchvision module: a plain import where that works. May be called any number of times."""
    try:
        return _imported()
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    # Only after the failure: where the extension loads, it declares these operators itself, and twice is an
    # error. It is not tried again, since Python keeps torchvision.extension, the part that gave up on it.
    declare_operators()
    try:
        return _imported()
    except RuntimeError as error:
        raise ImportError(
            f"torchvision does not import beside torch {torch.__version__}: {error}. "
            "Install the torchvision that was built for this torch (pip install torch torchvision together)"
        ) from error


def _imported() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        raise ImportError(
            "torchvision is not installed: pip install torchvision, in the release made for torch "
            f"{torch.__version__}; the cnn networks and resnet10 do without it"
        ) from error


def declare_operators() -> None:
    for name in OPERATORS:
        try:
            torch.library.define(f"torchvision::{name}", SCHEMA)
        except RuntimeError:
            if not hasattr(torch.ops.torchvision, name):  # else another thread came first
                raise
