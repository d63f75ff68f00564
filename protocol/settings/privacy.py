"""The [privacy] table of a device: what a run must do before the device takes part in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protofleet.protocol.settings.suggest import there_are

SECAGG: Final = "secagg"
KNOWN: Final = (SECAGG,)


@dataclass(frozen=True)
class PrivacySettings:
    """The [privacy] table: conditions that the plan of a run must fulfil."""

    require: tuple[str, ...] = ()
    """Protections without which the device takes part in no run, for example `["secagg"]` for masked sums."""

    def __post_init__(self) -> None:
        for name in self.require:
            if name not in KNOWN:
                raise ValueError(f"require has {name!r}; {there_are(name, KNOWN)}")
