"""Return the engine with a name."""

from __future__ import annotations

from collections.abc import Callable

from protofleet.lab.engines.engine import Engine
from protofleet.lab.engines.ray import Ray
from protofleet.lab.engines.slurm import Slurm

MAKERS: dict[str, Callable[[], Engine]] = {"slurm": Slurm, "ray": Ray}


def engine_named(name: str) -> Engine:
    return MAKERS[name]()
