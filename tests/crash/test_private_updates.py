"""After a crash of any party at any point, each update with noise that a device has sent is in its ledger.

A device draws new noise after each crash, so the bits of the run change. The ledger must stay correct.
`make crash` has the deaths of other runs; this file has many points of a run with `[dp]` in its slow test.
"""

import random
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from protofleet.methods.contract.plan import Network
from protofleet.protocol.settings.dp import DpSettings
from tests.crash.points import SECOND
from tests.crash.world import DEVICES, POLICY, ROUNDS, TURN_SECONDS, Crashing
from tests.support.few_methods import few
from tests.support.small_federation import plan, shard

# The budget holds more releases than the run has rounds, because a lost update is a release too.
DP = DpSettings("device", 8.0, 1e-4, 1.0, 10 * ROUNDS)
VICTIM = DEVICES[1]
SOME = 23  # Every 23rd point is in the quick test.
MANY = 11  # Every 11th point of a fate is in the slow test; the fates begin at other points.
FATES = ("killed", "unplugged", "torn", "killed twice")


class Watched(Crashing):
    """A run that notes each update that a device hands to its connection."""

    def __post_init__(self):
        self.left = {}  # Device -> the objects of training updates that it has sent.
        self.unnamed = []  # Updates that were sent before the ledger on the disk named them.
        super().__post_init__()

    def boot_device(self, device):
        super().boot_device(device)
        if device in self.agents:
            agent = self.agents[device]
            agent.link.send_update = partial(self._sent, agent, agent.link.send_update)

    def _sent(self, agent, send_update, update, name):
        if update.phase != "evaluate":
            left = self.left.setdefault(update.device, set())
            left.add(name)
            if len(agent.state.releases) < len(left):
                self.unnamed.append((update.device, update.round))
        send_update(update, name)


def watched(folder, deadly=None, **settings):
    shards = {name: shard(i, 12) for i, name in enumerate(DEVICES)}
    made = replace(plan("fedavg", ROUNDS, epochs=1), network=Network("mlp", 8), dp=DP)
    return Watched(made, shards, POLICY, folder, deadly=deadly or {}, turn_seconds=TURN_SECONDS, **settings)


@lru_cache
def points():
    with TemporaryDirectory() as folder:
        run = watched(Path(folder)).live()
        return {name: len(run.points[name].passed) for name in ("coordinator", VICTIM)}


def problems(party, point, fate):
    """Return the faults of the ledgers after this crash; an empty list means no faults."""
    deadly = {point, point + SECOND} if fate == "killed twice" else {point}
    dice = random.Random(f"{party}/{point}") if fate == "torn" else None
    power = {} if fate.startswith("killed") else {"power": True, "dice": dice}
    with TemporaryDirectory() as folder:
        run = watched(Path(folder), {party: frozenset(deadly)}, **power).live()
        return list(wrong_ledgers(run))


def wrong_ledgers(run):
    yield from (
        f"{device} sent its update of round {n} before its ledger named it" for device, n in run.unnamed
    )
    accepted = run.service.run.releases
    for device in DEVICES:
        if device not in run.agents:
            continue
        ledger = run.agents[device].state.releases
        if len(set(ledger)) < len(ledger):
            yield f"{device} names a release twice"
        if len(run.left[device]) > len(ledger):
            yield f"{device} has sent {len(run.left[device])} updates, and its ledger names {len(ledger)}"
        if len(accepted.releases(device)) < ROUNDS:
            yield f"the coordinator names {len(accepted.releases(device))} releases of {device}"
        if len(accepted.releases(device)) > len(ledger):
            yield f"the coordinator names more releases of {device} than the device"


@pytest.mark.parametrize("party", few(["coordinator", VICTIM], 2))
def test_a_device_sends_an_update_only_after_its_ledger_names_it(party):
    for i, point in enumerate(range(5, points()[party] + 1, SOME)):
        assert problems(party, point, FATES[i % len(FATES)]) == [], f"at point {point}"


@pytest.mark.slow
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("party", ["coordinator", VICTIM])
def test_a_device_that_crashes_at_many_points_sends_no_update_without_a_release(party, fate):
    some = range(1 + FATES.index(fate), points()[party] + 1, MANY)
    found = {point: problems(party, point, fate) for point in some}
    assert {point: words for point, words in found.items() if words} == {}
