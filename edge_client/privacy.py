"""The [privacy] table of a device: what the device demands of the plan of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from protofleet.methods.contract.kept import words_of
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.settings.dp import Epsilon
from protofleet.protocol.settings.reader import SettingsError

Refused: TypeAlias = Literal["keep"]
Required: TypeAlias = Literal["secagg"]


@dataclass(frozen=True)
class PrivacySettings:
    """The [privacy] table: what this device demands of a run's plan."""

    refuse: tuple[Refused, ...] = ()
    """Uses of this device's answers that it refuses; `keep` refuses a run whose coordinator keeps answers."""

    require: tuple[Required, ...] = ()
    """Protections without which the device takes part in no run; `secagg` requires masked sums, so that the
    coordinator learns only the sum of the updates.
    """

    epsilon: Epsilon | None = None
    """Largest `dp.epsilon` of a run; the device refuses runs with a larger one and runs without `[dp]`, and if left
    out, it refuses none.
    """

    def check(self, plan: Plan) -> None:
        """Raise SettingsError if the plan has what this device refuses, or lacks what it requires."""
        if "secagg" in self.require and plan.secagg is None:
            raise SettingsError(
                "this device takes part only in runs of masked sums, but the coordinator of this run gets each "
                'update: privacy.require has "secagg"; add the table [secagg] to the run, or change privacy.require'
            )
        if self.epsilon is not None and (plan.dp is None or plan.dp.epsilon > self.epsilon):
            found = f"this run has dp.epsilon = {plan.dp.epsilon:g}" if plan.dp else "this run has no [dp]"
            raise SettingsError(
                f"this device takes part only in runs with noise for an epsilon of at most {self.epsilon:g} "
                f"(privacy.epsilon), but {found}; add the table [dp] with such an epsilon to the run, or change "
                "privacy.epsilon"
            )
        if "keep" in self.refuse and plan.keep:
            raise SettingsError(
                f"the coordinator keeps the answers of {words_of(plan.keep)} (keep.answers), and this device refuses "
                'that: privacy.refuse has "keep"; run without keep.answers, or change privacy.refuse'
            )
