"""The draw of one seed: the fleet, the rules, and the kinds of faults that occur at all (swarm testing).

A seed with all faults at once finds less than a seed with a few, because faults hide each other. So each seed
first draws which kinds occur.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from tests.simulator.broker import Manners
from tests.support.run_policy import RunPolicy

KINDS = (
    "kill_coordinator", "kill_device", "die_inside", "power_cut", "broker_kill", "broker_restart", "cut",
    "partition", "one_way", "pause", "clock_jump", "skew", "second_coordinator", "twin", "late_joiner", "flapping",
    "straggler", "new_card", "small_queue", "loss", "repeat", "late", "reorder", "slow_link",
    "frail_disk",
    "lost_ends", "kept_refusals",
    "alter", "replay", "forge", "sign_anothers", "speak_openly", "miscount",
    "replaced",
)  # fmt: skip
SMALLEST_PACKET = 5120
SERIES, VECTOR = (2, 16), (12,)
UPLINKS = ("int8", "chance", "sparse", "packed")  # The keys of samples.UPLINKS.


@dataclass(frozen=True)
class Scenario:
    seed: int
    method: str
    devices: tuple[str, ...]
    policy: RunPolicy
    hyper: dict[str, Any]
    kinds: frozenset[str]
    bad_seconds: float  # Seconds after which all faults stop.
    faults: int
    manners: dict[str, Any]
    work_seconds: float  # The most seconds that a device works on a task.
    sealed: bool
    malice: float  # The share of frames at which a hostile party does harm.
    turn_items: int = 1  # The most items that a coordinator takes before it commits.
    axes: tuple[int, ...] = ()  # The axes of one sample; () means a square picture.
    deltas: bool = False  # Broadcasts are rounded and sent as deltas.
    uplink: str = ""  # The stages by which devices round their updates; "" means that they do not.
    # Bytes of each device in the run; 0 means no limit. No seed draws it: tests/simulator/test_budget.py sets it.
    budget: int = 0
    # The devices that take part in both of two runs of the coordinator; with () the coordinator has one run.
    able: tuple[str, ...] = ()
    summed: bool = False  # The coordinator learns only sums of updates.
    starts: bool = False  # Processes read their first items late, with `Connected` anywhere among them.

    @property
    def bound(self) -> float:
        """Return the seconds that the run may take after the last fault.

        A task of the bad time may run into its deadline, and its round may begin again. A fleet that looks
        unsteady may wait at the start of each round. Every later task takes its work, a reconnect and a few
        repeats.
        """
        rounds, p = self.policy.rounds + 1, self.policy
        deadlines = 3 + (rounds if p.flaps else 0)
        seconds = 300.0 + deadlines * p.patience_seconds + 2 * rounds * (self.work_seconds + 60.0)
        return 2 * seconds if self.able else seconds  # Two runs share the devices.


def draw(seed: int) -> Scenario:
    """Draw the scenario of a seed; separate dice for each aspect keep old aspects when a new one comes."""

    def dice(aspect: str) -> random.Random:
        return random.Random(f"{seed}/{aspect}")

    method = (
        "tally" if dice("method").random() < 0.985 else dice("other").choice(("fedpall", "fedplcc", "fedavg"))
    )
    count = dice("devices").choice((2, 3, 3, 4, 5, 6))
    share = dice("share").choice((0.0, 0.1, 0.25, 0.25, 0.5))
    kinds = frozenset(kind for kind in KINDS if dice(f"kind {kind}").random() < share)
    policy = _policy(dice("policy"), dice("rules of bad weather"), dice("evaluations"), count, method)
    hyper, buffered = (
        _hyper(dice("hyper"), method),
        method == "tally" and dice("asynchronous").random() < 0.06,
    )
    if buffered:
        policy, hyper = _buffered(policy, dice("buffer"), count), hyper | {"phases": 1}
    return Scenario(
        seed,
        method,
        tuple(f"d{i}" for i in range(count)),
        policy,
        hyper,
        kinds,
        bad_seconds=dice("bad seconds").choice((15.0, 60.0, 60.0, 240.0)),
        faults=dice("faults").choice((2, 5, 12, 25)),
        manners=_manners(dice("manners"), kinds, tiny=method == "tally"),
        work_seconds=dice("work").choice((0.2, 2.0, 10.0)),
        sealed=dice("sealed").random() < 0.3,
        malice=dice("malice").choice((0.02, 0.1, 0.3)),
        turn_items=dice("turn").choice((1, 1, 3, 64)),
        axes=dice("axes").choice(((), (), (), (), SERIES, VECTOR)),
        deltas=method == "tally" and not buffered and dice("deltas").random() < 0.3,
        uplink="" if buffered else _uplink(dice("form"), dice("forms"), method),
        starts=dice("inbox").random() < 0.2,
    )


def _policy(
    dice: random.Random, more: random.Random, evaluations: random.Random, count: int, method: str
) -> RunPolicy:
    quorum = dice.randint(1, count)
    cohort = dice.choice((0, 0, quorum, min(count, quorum + 1)))
    return RunPolicy(
        rounds=dice.choice((2, 3, 4)) if method == "tally" else 2,
        quorum=quorum,
        cohort=cohort,
        gather=dice.choice((0, 0, count)),
        patience_seconds=dice.choice((20.0, 60.0, 300.0)),
        grace_seconds=dice.choice((0.0, 5.0, 30.0)),
        settle_seconds=dice.choice((0.0, 1.0, 5.0)),
        spares=more.choice((0, 1)) if cohort else 0,
        straggler_factor=more.choice((0.0, 0.0, 1.5, 4.0)),
        flaps=more.choice((0, 2, 5)),
        flap_seconds=more.choice((30.0, 300.0)),
        evaluate_every=evaluations.choice((0, 0, 0, 1, 2)),
    )


def _buffered(policy: RunPolicy, dice: random.Random, count: int) -> RunPolicy:
    """Return the same policy with buffered rounds; more rounds than otherwise, so that updates become late."""
    return replace(
        policy,
        rounds=dice.choice((3, 5, 8)),
        mode="buffered",
        buffer=dice.randint(policy.quorum, max(policy.quorum, policy.cohort or count)),
        staleness=dice.choice((1, 3, 10)),
        spares=0,
    )


def _uplink(form: random.Random, dice: random.Random, method: str) -> str:
    return form.choice(UPLINKS) if method == "tally" and dice.random() < 0.2 else ""


def _hyper(dice: random.Random, method: str) -> dict[str, Any]:
    if method != "tally":
        return {"epochs": 1, "server_epochs": 2, "batch": 8, "lr": 0.02}
    return {"numbers": dice.choice((16, 300, 1500)), "rows": dice.choice((1, 6, 200))}


def _manners(dice: random.Random, kinds: frozenset[str], tiny: bool) -> dict[str, Any]:
    packets = (SMALLEST_PACKET, SMALLEST_PACKET, 20_000, 1 << 21) if tiny else (1 << 21,)
    found: dict[str, Any] = {
        "max_packet": dice.choice(packets),
        "max_queued": dice.choice((0, 2, 10)) if "small_queue" in kinds else 1000,
        "autosave_seconds": dice.choice((0.0, 1.0, 10.0)),
        "says_taken_over": dice.random() < 0.5,
        "will_at_takeover": dice.random() < 0.5,
    }
    for kind in ("loss", "repeat", "late"):
        rate = dice.choice((0.01, 0.1, 0.3))
        if kind in kinds:
            found[kind] = rate
    return found


def manners(scenario: Scenario) -> Manners:
    return Manners(**scenario.manners)
