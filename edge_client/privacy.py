"""The [privacy] table of a device: what the device demands of the plan of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from protofleet.methods.contract.kept import words_of
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.settings.reader import SettingsError

Refused: TypeAlias = Literal["keep"]


@dataclass(frozen=True)
class PrivacySettings:
    """The [privacy] table: what this device demands of a run's plan."""

    refuse: tuple[Refused, ...] = ()
    """Uses of this device's answers that it refuses; `keep` refuses a run whose coordinator keeps answers."""

    def check(self, plan: Plan) -> None:
        """Raise SettingsError if the plan has what this device refuses."""
        if "keep" in self.refuse and plan.keep:
            raise SettingsError(
                f"the coordinator keeps the answers of {words_of(plan.keep)} (keep.answers), and this device refuses "
                'that: privacy.refuse has "keep"; run without keep.answers, or change privacy.refuse'
            )
