"""If a device with two runs crashes at any point, the answers and the states of both runs stay the same."""

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from protofleet.edge_client.state.device import DeviceState
from tests.crash.platter import Platter
from tests.crash.world import OUT_SECONDS, CountedDisk, Killed, Points
from tests.support.scripted_coordinator import DEVICE, World
from tests.support.small_federation import plan

PLANS = {"red": plan("fedavg", 2, epochs=1), "blue": plan("ditto", 2, epochs=1)}
STRIDE = 29


class Dying(World):
    """A world whose device dies just before the steps in `deadly` of its disk or transport."""

    def __init__(self, folder: Path, deadly: frozenset[int] = frozenset(), power: bool = False) -> None:
        self.points, self.power = Points(deadly), power
        self.platter = Platter(folder / DEVICE, folder / "shelf")
        super().__init__(folder, PLANS, make_disk=self._disk)

    def _disk(self, name: str) -> CountedDisk:
        self.disk = CountedDisk(self.points, self.platter)
        return self.disk

    def boot_device(self) -> None:
        while True:
            try:
                return super().boot_device()
            except Killed:
                self._bury()

    def _bury(self) -> None:
        self.disk.die()
        self.points.deaths, self.points.dead = self.points.deaths + 1, False
        if self.power:
            self.platter.cut(None)

    def live(self) -> "Dying":
        while self.coordinator.active:
            before = self.clock.now
            try:
                self.run()
                assert not self.coordinator.active or self.clock.now > before, "nothing happens any more"
            except Killed:
                self.kill_device()
                self._bury()
                self.clock.call_at(self.clock.now + OUT_SECONDS, self.boot_device)
        return self

    def outcome(self):
        state = DeviceState(self.folder / DEVICE, durable=False)
        halves = {run: state.of(run).half() for run in PLANS}
        shown = {
            run: {name: half[name].tobytes() for name in half} if half else None
            for run, half in halves.items()
        }
        return self.answers, shown


@lru_cache
def unbroken():
    with TemporaryDirectory() as folder:
        world = Dying(Path(folder)).live()
        assert {len(rows) for rows in world.answers.values()} == {2} and world.points.deaths == 0
        return world.outcome(), tuple(world.points.passed)


def differences(point: int, power: bool):
    with TemporaryDirectory() as folder:
        world = Dying(Path(folder), frozenset({point}), power)
        try:
            world.live()
        except Exception as error:  # noqa: BLE001 - it is what this death has led to
            return f"{type(error).__name__}: {error}"
        return "" if world.points.deaths == 1 and world.outcome() == unbroken()[0] else str(world.answers)


@pytest.mark.parametrize(
    "points",
    [slice(3, None, STRIDE), pytest.param(slice(0, None), marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_a_crash_of_a_device_with_two_runs_changes_no_bit(points):
    steps = list(enumerate(unbroken()[1], start=1))[points]
    wrong = {
        f"{point} {words}": found for point, words in steps if (found := differences(point, point % 2 == 0))
    }
    assert not wrong
