"""Runs of masked sums in which a device that was written from docs/protocol.md alone is among our devices."""

import sys
from pathlib import Path

import numpy as np
import pytest

from protofleet.coordinator.round.policy import Policy
from protofleet.protocol.security.enrolment import CURRENT
from protofleet.protocol.settings.secagg import SecaggSettings
from tests.chaos.world import Process
from tests.hostile.federation import CLASSES, Federation
from tests.over_broker.test_smallest_device import EXAMPLES

pytestmark = [pytest.mark.broker, pytest.mark.slow]
PROGRAM = Path(__file__).with_name("smallest_sums_device.py")
OURS = ("absent", "one", "three", "two")
PRESENT = ["foreign", "one", "three", "two"]
POLICY = Policy(quorum=3, cohort=5, gather=5, settle_seconds=0.2, patience_seconds=60.0)
SETTINGS = SecaggSettings(bits=24, limit=64.0, holders=4, strict_cohort=False, patience_seconds=5.0)
PLANTED = "from tests.support import planted_sums as planted\n"


def foreign(f):
    address, keys = f.address("foreign"), f.fleet.folder_of("foreign") / CURRENT
    given = [address.host, address.port, keys, f.folder / "foreign", CLASSES, EXAMPLES]
    command = [sys.executable, "-I", str(PROGRAM), *map(str, given)]
    made = Process("foreign", command, f.folder / "foreign.log")
    f.processes.append(made)
    made.start()
    return made


def sums_in(notes, own):
    """Return the sums by round and stage, after a check against the words of their devices."""
    found = {}
    for path in sorted(notes.glob("*.npz")):
        number, stage, terms, _ = path.name.split(".")
        one = np.load(path)
        files = {name: notes / f"{terms}.{name}.npy" for name in OURS} | {"foreign": own / f"{terms}.npy"}
        words = [np.load(files[name]).astype(np.uint64) for name in one["survivors"]]
        assert np.array_equal(one["words"], np.sum(words, axis=0) % (1 << int(one["bits"])))
        found[int(number), stage] = [*one["survivors"]], one["words"]
    return found


@pytest.mark.parametrize("lost_at", ["train.masked", "train.presence.masked"])
def test_a_device_written_from_the_protocol_page_is_in_each_sum_despite_a_silent_device(tmp_path, lost_at):
    """The silent device misses all of the first round, so places in the roster are not places in the records.

    In the second round it has shared its keys, so the others reveal its masks.
    """
    rows = "presence" in lost_at
    notes = tmp_path / "notes"
    notes.mkdir()
    silent = f"planted.fall_silent([(1, 'train'), (2, {lost_at!r})])"
    given = {
        "policy": POLICY,
        "rounds": 2,
        "secagg": SETTINGS,
        "method": {"name": "fedproto" if rows else "fedavg"},
    }
    with Federation(tmp_path, *OURS, "foreign", **given) as f:
        coordinator = f.coordinator(planted=f"{PLANTED}planted.note_sums({str(notes)!r})")
        for name in OURS:
            f.device(
                name, planted=f"{PLANTED}planted.note_words({str(notes)!r})\n{silent * (name == 'absent')}"
            )
        device = foreign(f)
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert f.wait_for_end(device) == 0 and "dropped" not in f.log_of(device), f.log_of(device)
    stages = ("presence", "values") if rows else ("values",)
    found = sums_in(notes, tmp_path / "foreign")
    assert {place: names for place, (names, _) in found.items()} == {
        (n, s): PRESENT for n in (1, 2) for s in stages
    }
    if rows:
        # Three devices have samples of class 0, fewer than `holders`.
        counts, values = (found[2, stage][1] for stage in stages)
        table = values.reshape(CLASSES, -1)
        assert counts.tolist() == [3, 4, 4] and not table[0].any() and table[1:].any(axis=1).all()
