"""The packages of each extra of pyproject.toml, by which a hint names what is missing.

`pip install 'protofleet[export]'` would need an index that has protofleet; the packages themselves are on every one.
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
    """Of all that it still takes: who is told once is told enough."""
    return f"pip install {' '.join(missing(extra) or EXTRAS[extra])}"
