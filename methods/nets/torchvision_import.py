"""The import of torchvision with any torch, even if the compiled operators of torchvision do not load.

The installed torchvision may be built for another torch (a CUDA wheel with a CPU-only torch or a vendor's
torch). Then its extension does not load, and torchvision ignores this error. But torchvision still describes
its operators, and the description fails: "operator torchvision::nms does not exist". To avoid the error, this
module declares the two operators that torchvision describes. They have no code, so detection operators raise an error
when they are called. Networks, transforms and data sets do not need them.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
OPERATORS = ("nms", "qnms")


def import_torchvision() -> ModuleType:
    """Import torchvision; if its operators are missing, declare them and import it again.

    The function may be called any number of times.
    """
    try:
        return _imported()
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    # The operators are declared here only if the extension of torchvision could not be loaded. An extension that is
    # loaded declares them itself, and a second declaration is an error. The next import does not load the extension
    # again, because Python keeps the module torchvision.extension of the first import.
    declare_operators()
    try:
        return _imported()
    except RuntimeError as error:
        raise ImportError(
            f"torchvision cannot be imported with torch {torch.__version__}: {error}. "
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
            f"{torch.__version__}; the cnn networks and resnet10 work without torchvision"
        ) from error


def declare_operators() -> None:
    for name in OPERATORS:
        try:
            torch.library.define(f"torchvision::{name}", SCHEMA)
        except RuntimeError:
            if not hasattr(torch.ops.torchvision, name):  # If it exists, another thread has declared it.
                raise
