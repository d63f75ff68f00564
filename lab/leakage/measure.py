"""Run all attacks on the answers of some devices, and compare devices with each other."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from protofleet.lab.leakage.attacks.registry import ATTACKS, Attack, kinds_in, without_attack
from protofleet.lab.leakage.finding import ATTACKERS, NO_TRUTH, Attacker, Finding, Result, Unmet
from protofleet.lab.leakage.observed import Observed
from protofleet.lab.leakage.pooled import Scored, row_of
from protofleet.lab.leakage.scene import Scene, scenes
from protofleet.protocol.settings.reader import SettingsError


@dataclass(frozen=True)
class LeakageQuery:
    """The devices, the strongest attacker and the kinds of arrays that are measured; empty means all kinds."""

    devices: Sequence[str]
    attacker: Attacker = "A1"
    kinds: frozenset[str] = frozenset()
    thorough: bool = False  # Whether slow attacks run, too.


@dataclass(frozen=True)
class Measured:
    """The findings of each device, the figures of all devices together, and what was not measured."""

    query: LeakageQuery
    findings: Sequence[Finding]  # Of each device.
    pooled: Sequence[Finding]  # Of all devices together.
    missing: Sequence[Finding]  # Attacks that gave no figure, each with the reason.

    @property
    def worst(self) -> Sequence[Finding]:
        """Return the worst device of each attack. It is the headline, because a mean hides a bad device."""
        groups: dict[tuple[str, str, str, str], list[Finding]] = defaultdict(list)
        for one in self.findings:
            if not math.isnan(one.figure.value):
                groups[one.attack, one.kind, one.measure, one.attacker].append(one)
        return [max(group, key=harm) for group in groups.values()]


# Measures of which a smaller figure is worse for the device.
SMALLER_IS_WORSE = ("total variation", "samples")


def harm(finding: Finding) -> tuple[bool, float]:
    """Return a key that is larger if more was found out; a figure with a bad control counts less than any other."""
    sign = -1.0 if finding.measure in SMALLER_IS_WORSE else 1.0
    return finding.sound, sign * finding.figure.value


def measured(observed: Observed, query: LeakageQuery, number: int | None = None) -> Measured:
    """Run the attacks that apply to the answers of this round, or of the last round of each device.

    Raise SettingsError if the answers have none of the wanted kinds of arrays.
    """
    found, missing, scores = (
        list[Finding](),
        list[Finding](),
        defaultdict[tuple[str, ...], list[Scored]](list),
    )
    seen = set[str]()
    for scene in scenes(observed, query.devices, number).values():
        kinds = kinds_in(scene)
        seen |= kinds
        for attack in ATTACKS:
            if not kinds.intersection(attack.kinds) or not _wanted(attack, query):
                continue
            results = _results(attack, scene, query)
            kept = [one for one in results if isinstance(one, Unmet) or not _beyond(one.attacker, query)]
            for one in kept:
                if isinstance(one, Unmet):
                    missing.append(
                        Finding(one.attack, one.kind, "", device=scene.device, unmeasured=one.reason)
                    )
                elif isinstance(one, Finding):
                    found.append(one)
                else:
                    scores[one.attack, one.kind, one.measure].append(one)
            if not kept:
                missing.append(_missing(attack, scene, kinds, results))
        missing += [_no_attack(kind, scene) for kind in sorted(without_attack(kinds)) if not query.kinds]
    if query.kinds and not query.kinds & seen:
        raise SettingsError(
            f"--kinds is {','.join(sorted(query.kinds))}, but the answers have only {', '.join(sorted(seen))}"
        )
    return Measured(
        query, [*found, *_each(scores.values())], [row_of(group) for group in scores.values()], missing
    )


def _each(groups: Collection[Sequence[Scored]]) -> Iterator[Finding]:
    """Return the row of each device."""
    for group in groups:
        for one in group:
            yield row_of([one], one.device)


def _wanted(attack: Attack, query: LeakageQuery) -> bool:
    if attack.thorough and not query.thorough:
        return False
    return not query.kinds or bool(query.kinds.intersection(attack.kinds))


def _beyond(attacker: Attacker, query: LeakageQuery) -> bool:
    """Return whether this attacker knows more than the strongest attacker of the query."""
    return ATTACKERS.index(attacker) > ATTACKERS.index(query.attacker)


def _results(attack: Attack, scene: Scene, query: LeakageQuery) -> Sequence[Result]:
    """Return the results of an attack. A slow attack of a stronger attacker is not run."""
    least = attack.least(scene)
    if least is not None and _beyond(least, query):
        return [Unmet(attack.name, _kind(attack, kinds_in(scene)), _needs(least))]
    return list(attack.find(scene))


def _missing(attack: Attack, scene: Scene, kinds: Collection[str], results: Sequence[Result]) -> Finding:
    return Finding(
        attack.name, _kind(attack, kinds), "", device=scene.device, unmeasured=_reason(attack, scene, results)
    )


def _kind(attack: Attack, kinds: Collection[str]) -> str:
    return next(name for name in attack.kinds if name in kinds)


def _needs(attacker: Attacker) -> str:
    return f"it needs the attacker {attacker}: run with --attacker {attacker}"


def _reason(attack: Attack, scene: Scene, results: Sequence[Result]) -> str:
    if attackers := [one.attacker for one in results if not isinstance(one, Unmet)]:
        return _needs(min(attackers))
    if scene.truth is None and attack.needs_truth:
        return NO_TRUTH
    if attack.needs_network and scene.extractor is None:
        if not scene.is_last and scene.truth is not None and scene.truth.half is not None:
            return f"the device's network of round {scene.number} is not kept, only the last one: leave --round out"
        return "the attacker does not have the network that makes the features"
    if attack.needs_truth and scene.never_sent is None:
        return "no samples of the domain are left that were never sent: not measured"
    return "the arrays do not have the form that this attack needs"


def _no_attack(kind: str, scene: Scene) -> Finding:
    return Finding(
        "none", kind, "", device=scene.device, unmeasured="no attack on arrays of this kind is implemented"
    )


def by_device(findings: Sequence[Finding]) -> Mapping[str, Sequence[Finding]]:
    """Return the findings of each device, by the device's name."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for one in findings:
        found[one.device].append(one)
    return found
