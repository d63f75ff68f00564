"""A disk that becomes full in the middle of a write of a device changes no bit.

The kernel then writes a part of the bytes and reports no error. Only the next write fails.
"""

import errno
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from protofleet.lab.simulation.federation import Simulation
from protofleet.methods.contract.plan import Network
from protofleet.protocol.settings.codec import CodecSettings
from protofleet.protocol.storage.disk import Disk
from tests.crash.world import CODED, DOWN, TERNARY
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import assert_same, plan, shard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a handle's path is read from /proc")
# A round waits for both devices, so each run has the same updates.
POLICY = RunPolicy(quorum=2, cohort=2, patience_seconds=3000.0, settle_seconds=0.5, straggler_factor=0.0)
DEVICE = "device-1"
SECONDS = 6.4  # Virtual seconds; the device waits and tries again in this time.
# FedPall has two phases, a state on the device, and broadcasts of many blocks. With the codec, the device also keeps
# the rounding losses. The coordinator keeps the updates of FedNCM.
METHODS = ("fedavg", f"fedavg{CODED}", "fedpall", "scaffold", "fedncm", "fedplcc")


class FillingDisk(Disk):
    """A device's disk, which is full for some seconds from the middle of the write with the number `at` on."""

    def __init__(self, folder, at, seconds, patch):
        super().__init__(durable=False)
        self.folder, self.at, self.seconds = str(folder), at, seconds
        self.written = []  # The suffix of the file of each write.
        self.run, self._full_since = None, None
        for call in ("write", "pwrite"):
            patch.setattr(os, call, self._in_place_of(getattr(os, call)))

    @property
    def full(self):
        return self._full_since is not None and self.run.clock.now < self._full_since + self.seconds

    def before_step(self, step, what):
        if self.full and step in ("make", "sync"):
            raise OSError(errno.ENOSPC, "No space left on device", str(what))

    def _in_place_of(self, real):
        def write(handle, data, *start):
            path = Path(f"/proc/self/fd/{handle}").readlink()
            if not str(path).startswith(self.folder):
                return real(handle, data, *start)
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            self.written.append(path.suffix)
            if len(self.written) != self.at:
                return real(handle, data, *start)
            self._full_since = self.run.clock.now
            return real(handle, memoryview(data)[: len(data) // 2], *start)

        return write


def run_on(folder, method, at=0, seconds=SECONDS, rounds=3):
    """Return the small disk of a device after a run."""
    with pytest.MonkeyPatch.context() as patch:
        # All objects are written by os.write.
        patch.setattr("protofleet.protocol.storage.store.SMALL", sys.maxsize)
        disk = FillingDisk(folder / DEVICE, at, seconds, patch)
        shards = {name: shard(i, 12) for i, name in enumerate(("device-0", DEVICE))}
        disk.run = Simulation(
            planned(method, rounds), shards, replace(POLICY, rounds=rounds), folder,
            make_disk=lambda name: disk if name == DEVICE else Disk(durable=False),
        )  # fmt: skip
        disk.first = len(disk.written) + 1  # The first write after the start of the device.
        disk.run.run()
    assert disk.run.service.finished
    return disk


def planned(method, rounds):
    name, coded, _ = method.partition(CODED)
    made = plan(name, rounds, epochs=1, server_epochs=1)
    codec = CodecSettings({"weights": TERNARY}, {"weights": DOWN}) if coded else None
    return replace(made, network=Network("mlp", 40 if coded else 8), codec=codec)


def numbers_of(disk, kind):
    """Return the numbers of the writes to files with this suffix."""
    return [number for number, suffix in enumerate(disk.written, 1) if suffix == kind]


@pytest.mark.parametrize("seconds", [0.0, SECONDS])
def test_a_disk_that_becomes_full_during_the_write_of_a_block_changes_no_bit(tmp_path, seconds):
    whole = run_on(tmp_path / "undisturbed", "fedpall", rounds=1)
    blocks = numbers_of(whole, ".part")
    assert len(blocks) > 30, "the broadcast has only a few blocks"
    found = run_on(tmp_path / "disturbed", "fedpall", blocks[12], seconds, rounds=1)
    assert_same(whole.run, found.run)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_disk_that_becomes_full_during_any_write_changes_no_bit(tmp_path, method):
    whole = run_on(tmp_path / "undisturbed", method)
    blocks = numbers_of(whole, ".part")
    others = [n for n in range(whole.first, len(whole.written) + 1) if n not in blocks]
    # The test tries every second write, and a few of the blocks, because a run of FedPall takes a second.
    for i, number in enumerate(sorted([*others[::2], *blocks[::20]])):
        found = run_on(tmp_path / str(number), method, number, (0.0, SECONDS)[i % 2])
        assert_same(whole.run, found.run)
