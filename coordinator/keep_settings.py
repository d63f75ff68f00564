"""The [keep] table of a coordinator's settings."""

from __future__ import annotations

from dataclasses import dataclass

from protofleet.methods.contract.kept import KeptRound


@dataclass(frozen=True)
class KeepSettings:
    """The [keep] table: the answers that the coordinator keeps after their rounds."""

    answers: tuple[KeptRound, ...] = ()
    """Rounds whose answers are kept in the folder `kept` of the run, as numbers or `last`; the plan names them to the
    devices.
    """
