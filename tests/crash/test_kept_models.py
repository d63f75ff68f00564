"""A device that crashes or has a full disk at any step has complete copies of its models or none.

The training continues in all cases.
"""

import logging

from protofleet.edge_client.serving.publisher import ModelOrigin as Publisher
from protofleet.edge_client.serving.publisher import ModelPublisher
from protofleet.edge_client.serving.settings import ModelSettings
from protofleet.edge_client.trainer.job import GLOBAL, PERSONAL
from protofleet.edge_client.trainer.kept_models import BEST, LAST, KeptModels, kept_file
from protofleet.methods.nets.weights_file import read_weights
from protofleet.methods.served.card import read_card
from protofleet.methods.served.kept import KeptOrigin, read_kept
from protofleet.methods.served.rebuild import rebuild
from protofleet.protocol.storage.disk import Disk
from tests.crash.platter import Platter
from tests.crash.world import CountedDisk, Killed, Points
from tests.methods.served.trained import device_0, plan_of

ROUNDS = [(1, 0.2), (2, 0.7), (3, 0.4), (4, 0.9)]  # Each round with its validation accuracy.
PLAN = plan_of("fedavg")


def kept_models(folder, disk):
    return KeptModels(folder, KeptOrigin(PLAN, "device-0", PLAN.network, ("a", "b", "c")), disk)


def publish(kept, number, validation, kind=PERSONAL):
    measured = {f"accuracy.validation.{kind}": validation}
    kept.publish(kind, device_0("fedavg"), number, measured)


def whole_rounds(folder):
    """Return the rounds of the kept files.

    Raise CardError if a file is not what was written.
    """
    found = {}
    for chosen in (LAST, BEST):
        if (path := kept_file(folder, chosen)).exists():
            kept = read_kept(path)
            kept.model()
            found[chosen] = kept.card.round
    return found


def life(folder, shelf, deadly=frozenset()):
    """Run all rounds; the next process repeats a round in which the device died."""
    points, platter, rounds = Points(deadly), Platter(folder, shelf), list(ROUNDS)
    folder.mkdir(exist_ok=True)
    kept = kept_models(folder, CountedDisk(points, platter))
    while rounds:
        try:
            publish(kept, *rounds[0])
            rounds.pop(0)
        except Killed:
            points.dead, points.deaths = False, points.deaths + 1
            assert set(whole_rounds(folder).values()) <= {number for number, _ in ROUNDS}
            kept = kept_models(folder, CountedDisk(points, platter))
    return points


def test_a_killed_device_leaves_complete_kept_models_and_the_same_choice(tmp_path):
    points = life(tmp_path / "unbroken", tmp_path / "shelf")
    wanted = whole_rounds(tmp_path / "unbroken")
    assert wanted == {LAST: 4, BEST: 4} and len(points.passed) == 9
    for point in range(1, len(points.passed) + 1):
        folder = tmp_path / str(point)
        died = life(folder, tmp_path / f"{point}.shelf", frozenset({point}))
        assert died.deaths == 1 and whole_rounds(folder) == wanted, points.passed[point - 1]
        assert sorted(path.name for path in (folder / "kept").iterdir()) == [
            f"{BEST}.safetensors",
            f"{LAST}.safetensors",
        ]


class Full(Disk):
    """A disk that has no room from a step on, until a test makes room."""

    def __init__(self, left):
        super().__init__(durable=False)
        self.left, self.refused = left, 0

    def before_step(self, step, what):
        self.left -= 1
        if self.left < 0 and step != "remove":
            self.refused += 1
            raise OSError(28, "No space left on device", str(what))


def publish_all(kept, kind=PERSONAL, rounds=ROUNDS):
    for number, validation in rounds:
        publish(kept, number, validation, kind)  # Any exception here would end a training.


def steps_of(play):
    disk = Full(1 << 30)
    play(disk)
    assert not disk.refused
    return (1 << 30) - disk.left


def test_a_full_disk_at_any_step_prevents_kept_models_and_never_stops_training(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL)
    (tmp_path / "unbroken").mkdir()
    steps = steps_of(lambda disk: publish_all(kept_models(tmp_path / "unbroken", disk)))
    assert steps == 9
    for left in range(steps):
        folder, disk = tmp_path / str(left), Full(left)
        folder.mkdir()
        publish_all(kept := kept_models(folder, disk))
        assert disk.refused
        whole_rounds(folder)
        disk.left = 1 << 30
        publish(kept, 5, 0.95)
        assert whole_rounds(folder) == {LAST: 5, BEST: 5}


def test_a_full_disk_at_any_step_prevents_model_versions_and_never_stops_training(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL)

    def served(folder, disk):
        publisher = ModelPublisher(ModelSettings(keep=1), folder, Publisher("owl", None), disk)
        return publisher, publisher.of(PLAN, ("a", "b", "c"))

    few = ROUNDS[:2]
    steps = steps_of(lambda disk: publish_all(served(tmp_path / "unbroken", disk)[1], GLOBAL, few))
    assert steps > 20
    for left in range(steps):
        disk = Full(left)
        publisher, models = served(tmp_path / str(left), disk)
        publish_all(models, GLOBAL, few)
        assert bool(disk.refused) == bool(publisher.take_unwritten())  # A removal needs no space.
        for version in publisher.versions.whole():
            rebuild(
                read_card((version.folder / "card.json").read_bytes()),
                read_weights(version.folder / "model.safetensors"),
            )
        disk.left = 1 << 30
        publish(models, 5, 0.95, GLOBAL)
        assert publisher.versions.named("current").round == publisher.versions.named("champion").round == 5
