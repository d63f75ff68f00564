"""The [policy.robust] table: rules that replace the mean over the devices, so that a lying device does less harm."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal, TypeAlias, get_args

from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.reader import demand_within

# "mean" is what the method does itself. docs/robust.md describes the other rules.
Rule: TypeAlias = Literal["mean", "cap", "clip_median", "trimmed", "median", "geometric", "multikrum"]
RULES: Final[tuple[str, ...]] = get_args(Rule)
# In these rules each device counts once, so a late update of a buffered round would count as much as all others.
UNWEIGHTED: Final = frozenset({"median", "geometric"})
Liars: TypeAlias = Annotated[float, Within(0, 0.5, above=True, below=True)]


@dataclass(frozen=True)
class Robust:
    """The [policy.robust] table: rules that replace the mean over the devices."""

    weights: Rule = "mean"
    """Rule for the arrays that all devices send alike, such as weights, `mean` (what the method does), `cap`,
    `clip_median`, `trimmed`, `median`, `geometric` or `multikrum`.
    """
    prototypes: Rule = "mean"
    """Rule for the row of each class, such as a prototype; the rules are the same."""
    liars: Liars = 0.2
    """Share of the devices of a round that `trimmed` and `multikrum` expect to lie; they expect at least one device,
    and fewer than half.
    """

    def __post_init__(self) -> None:
        demand_within(self)
        for name in ("weights", "prototypes"):
            if (rule := getattr(self, name)) not in RULES:
                raise ValueError(f"{name} is {rule!r}, it must be one of {', '.join(RULES)}")

    @property
    def rules(self) -> dict[str, Rule]:
        """Return the rules that are not `mean`, by the name of their setting."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "liars"}
        return {name: rule for name, rule in found.items() if rule != "mean"}
