"""List the packages of each extra of pyproject.toml, so that a hint can name the missing packages.

The hint does not say `pip install 'protofleet[export]'`, because an index may not have protofleet itself. Every
index has the packages of the extras.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Final

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "broker": ("iotcore",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "mlflow": ("mlflow",),
    "ray": ("ray",),
    "tensorboard": ("tensorboard",),
}


def missing(extra: str) -> list[str]:
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]


def install_hint(extra: str) -> str:
    """Return the command that installs all missing packages of an extra."""
    return f"pip install {' '.join(missing(extra) or EXTRAS[extra])}"
