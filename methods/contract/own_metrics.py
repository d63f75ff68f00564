"""A user's own metrics, in addition to accuracy and loss: `METRICS = {"macro_f1": function}` in a file.

A function takes the scores [N, C] and the labels [N] of a device's samples, and returns one number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from torch import Tensor

from protofleet.methods.plugins import file, packages
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.plugins.errors import PlugInError, guarded
from protofleet.methods.plugins.found import object_of

NAME: Final = re.compile("[a-z][a-z0-9_]{0,31}")
OURS: Final = frozenset({"accuracy", "loss", "samples", "seconds", "joules"})
MOST: Final = 16

Metric: TypeAlias = Callable[[Tensor, Tensor], float]


@dataclass(frozen=True)
class OwnMetrics:
    """The [metrics] table: a file that contains metrics, or the name of metrics in an installed package."""

    file: str = ""
    """Path of a Python file that defines the metrics; empty means that an installed package has them."""
    name: str = ""
    """Name of the metrics in an installed package; empty means the name of the file."""

    def hash_in(self, plugins: PlugIns) -> str:
        name = self.name or Path(self.file).stem
        found = plugins.hash_of("metrics", name, self.file, ours=False)
        if not found:
            raise PlugInError(
                f"metrics.name is {self.name!r}, but no installed package has metrics of this name; set metrics.file"
            )
        metrics_of(found)
        return found


def metrics_of(sha256: str) -> Mapping[str, Metric]:
    """Return the metrics of a plug-in that this process has loaded.

    If `sha256` is empty, the run has no own metrics, and the result is an empty table.
    """
    if not sha256:
        return {}
    if (module := file.loaded(sha256)) is not None:
        found = object_of("metrics", module)
        where = Path(str(module.__file__)).name
    else:
        own = next((one for one in packages.installed("metrics").values() if one.sha256 == sha256), None)
        if own is None:
            raise PlugInError(f"the metrics are a plug-in with SHA-256 {sha256}, which is not loaded here")
        found, where = own.load(), str(own)
    if not isinstance(found, Mapping) or not found or len(found) > MOST:
        raise PlugInError(
            f"{where}: METRICS is {type(found).__name__}; it must be a table of 1 to {MOST} names and functions"
        )
    for name, function in found.items():
        if not (isinstance(name, str) and NAME.fullmatch(name) and name not in OURS and callable(function)):
            raise PlugInError(
                f"{where}: METRICS has {name!r}; a name consists of small letters, digits and _, is not one of "
                f"{', '.join(sorted(OURS))}, and has a function as its value"
            )
    return found


def measured(metrics: Mapping[str, Metric], scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the value of each metric.

    If a function raises an error, raise PlugInError with its file and line. This error ends the current task.
    """
    found = {}
    for name, function in metrics.items():
        code = getattr(function, "__code__", None)
        files = {code.co_filename} if code else set()
        found[name] = guarded(lambda f=function: float(f(scores, labels)), f"metric {name}", files)  # type: ignore[misc]
    return found
