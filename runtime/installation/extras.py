"""List the packages of each extra of pyproject.toml, so that a hint can name missing ones.

`pip install 'protofleet[export]'` would need an index that has protofleet. The packages themselves are on
every index.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Final

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "broker": ("iotcore",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "mlflow": ("mlflow",),
    "tensorboard": ("tensorboard",),
}


def missing(extra: str) -> list[str]:
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]


def install_hint(extra: str) -> str:
    """Return the command that installs all missing packages, so that one hint is enough."""
    return f"pip install {' '.join(missing(extra) or EXTRAS[extra])}"
