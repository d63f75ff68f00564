"""Run all attacks on the answers of some devices, and compare devices with each other."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from protofleet.lab.leakage.attacks.registry import ATTACKS, Attack, kinds_in, without_attack
from protofleet.lab.leakage.finding import ATTACKERS, NO_TRUTH, Attacker, Finding, MembershipScores
from protofleet.lab.leakage.maths.membership import Membership
from protofleet.lab.leakage.maths.membership import membership as compared
from protofleet.lab.leakage.observed import Observed
from protofleet.lab.leakage.scene import Scene, scenes


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
    """Run the attacks that apply to the answers of this round, or of the last round of each device."""
    found, missing, scores = list[Finding](), list[Finding](), defaultdict[str, list[MembershipScores]](list)
    for scene in scenes(observed, query.devices, number).values():
        kinds = kinds_in(scene)
        for attack in ATTACKS:
            if not kinds.intersection(attack.kinds) or not _wanted(attack, query):
                continue
            results = list(attack.find(scene))
            kept = [
                one for one in results if ATTACKERS.index(one.attacker) <= ATTACKERS.index(query.attacker)
            ]
            for one in kept:
                if isinstance(one, MembershipScores):
                    scores[one.attack].append(one)
                else:
                    found.append(one)
            if not kept:
                missing.append(_missing(attack, scene, kinds, results))
        missing += [_no_attack(kind, scene) for kind in sorted(without_attack(kinds)) if not query.kinds]
    for group in scores.values():
        found += [finding_of(one, compared([one.scores])) for one in group]
    pooled = [together(group) for group in scores.values()]
    return Measured(query, found, pooled, missing)


def _wanted(attack: Attack, query: LeakageQuery) -> bool:
    if attack.thorough and not query.thorough:
        return False
    return not query.kinds or bool(query.kinds.intersection(attack.kinds))


def finding_of(one: MembershipScores, result: Membership, device: str | None = None) -> Finding:
    """Return the row of a membership attack."""
    rate, wrong = result.true_positives, result.false_positives
    few = "TPR at 1 % FPR not measured: it needs 1,000 samples that were never sent"
    words = f"TPR {rate.value:.2f} [{rate.low:.2f}, {rate.high:.2f}] at FPR {wrong.value:.3f}"
    return Finding(
        one.attack, one.kind, "AUC", one.attacker, one.scores.device if device is None else device,
        result.auc, 0.5, result.control, "never sent against never sent", result.sound, gates=True,
        note=few if math.isnan(rate.value) else words,
    )  # fmt: skip


def together(group: Sequence[MembershipScores]) -> Finding:
    """Return the row of all devices together."""
    return finding_of(group[0], compared([one.scores for one in group]), device="")


def _missing(
    attack: Attack, scene: Scene, kinds: Collection[str], results: Sequence[Finding | MembershipScores]
) -> Finding:  # fmt: skip
    kind = next(name for name in attack.kinds if name in kinds)
    return Finding(attack.name, kind, "", device=scene.device, unmeasured=_reason(attack, scene, results))


def _reason(attack: Attack, scene: Scene, results: Sequence[Finding | MembershipScores]) -> str:
    if results:
        needed = min(one.attacker for one in results)
        return f"it needs the attacker {needed}: run with --attacker {needed}"
    if scene.truth is None and attack.needs_truth:
        return NO_TRUTH
    if attack.needs_network and scene.extractor is None:
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
