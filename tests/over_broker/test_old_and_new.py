"""Devices and coordinators of version 1.0 together with those of 1.1: real processes, at a secured Mosquitto.

Scripts play the old ones in bytes (tests/hostile), from docs/protocol.md as it was before 1.1.
"""

import contextlib
import hashlib
import json
import sqlite3
import time
from dataclasses import dataclass

import numpy as np
import pytest

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.plan import Network
from protofleet.protocol.security.enrolment import CURRENT, load_enrolled
from protofleet.protocol.settings.secagg import SecaggSettings
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.names import COORDINATOR
from tests.chaos.campaign import pictures
from tests.conftest import missing
from tests.hostile import wire
from tests.hostile.device import Answer, Device, honest
from tests.hostile.federation import CLASSES, RUN, Federation
from tests.hostile.newer import Newer
from tests.hostile.old_coordinator import INLINE, OldCoordinator
from tests.support.small_federation import once_each

pytestmark = [pytest.mark.broker, pytest.mark.slow]
METHODS = {  # One has broadcasts of several blocks, one has broadcasts of one block.
    "fedavg": {"network": Network("mlp", feature_size=256), "method": {"name": "fedavg", "lr": 0.02}},
    # Its broadcasts are one block.
    "fedproto": {
        "network": Network("mlp", feature_size=16),
        "method": {"name": "fedproto"},
    },
}
# The evaluation has no quorum, but it must wait for a slow device all the same.
TOGETHER = Policy(quorum=3, cohort=3, patience_seconds=90.0, settle_seconds=0.2, straggler_factor=0.0)
SILENT = "import protofleet.protocol.wire.forms as forms; forms.DEVICE_FORMS = ()"  # It lists no form.
OURS = ("one", "two")
SPOKEN = {  # The keys that 1.0 has in messages to devices; they ignore all others.
    "state": {"online", "reason"}, "welcome": {"plan"}, "task": {"broadcast", "seconds"}, "refusal": {"reason"},
    "want": {"object", "ranges", "again"}, "receipt": {"verdict", "reason"}, "finished": set(),
}  # fmt: skip
UPWARDS = {
    "state": {"online", "reason"}, "bye": {"reason"}, "want": {"object", "ranges", "again"},
    "hello": {"classes", "examples", "domain", "software", "protocol", "plan", "counts", "holds"},
    "update": {"examples", "metrics", "arrays"},
}  # fmt: skip
TO_ALL = {
    "welcome.about",
    "state.who",
    "state.now",
    "hello.can",
    "hello.names",
    "hello.names_hash",
    "hello.capacity",
}


@dataclass
class Ran:
    """The results of a run, as hashes of updates and broadcasts, and the messages that its scripted device got."""

    answers: list[tuple]
    learned: list
    rejected: list[dict]
    complaints: list[str]
    heard: list
    asks: list

    @property
    def plan(self):
        return next(h.fields["plan"] for h in self.heard if h.kind == "welcome")


def weights(task):
    return {k: (v * v.dtype.type(0.75)).astype(v.dtype) for k, v in task.arrays.items()}


def prototypes(task):
    dice = np.random.default_rng(task.round)
    width = METHODS["fedproto"]["network"].feature_size
    values = dice.normal(size=(CLASSES, width)).astype("float32")
    return {"prototypes": values, "labels": np.arange(CLASSES), "counts": np.array([3, 3, 4])}


WORK = {"fedavg": weights, "fedproto": prototypes}


def ran(folder, method, third, planted="", **more):
    """Run two of our devices and a scripted one to the end."""
    with Federation(folder, *OURS, "third", policy=TOGETHER, rounds=2, **METHODS[method], **more) as f:
        coordinator, asks = f.coordinator(), []

        def work(task):
            asks.append(task)
            if task.phase == "evaluate":
                return honest(task)
            body = wire.body(WORK[method](task))
            return Answer(body if len(body) < INLINE else device.offer(body))

        device = third(f.credentials("third"), work)
        f.raw_devices.append(device)
        device.start()
        ours = devices(f, planted)
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        device.wait("finished")
        assert [f.wait_for_end(one) for one in ours] == [0, 0]
        rejected = [line["rejected"] for line in f.rounds()]
        return Ran(*learned(f), rejected, complaints(f, ours), device.heard, asks)


def learned(f):
    """Return the hashes of updates, of their bases and of the coordinator's states; also the metrics."""
    with contextlib.closing(sqlite3.connect(f.run / "coordinator" / "spool.sqlite")) as db:
        answers = db.execute(
            "SELECT round, phase, device, base, object FROM accepted ORDER BY round, device"
        ).fetchall()
        said = [
            json.loads(row[0]) for row in db.execute("SELECT metrics FROM accepted ORDER BY round, device")
        ]
        states = db.execute("SELECT round, attempt, object FROM checkpoint ORDER BY id").fetchall()
    differing = ("seconds.", "joules.", "celsius.")  # These differ from run to run.
    measured = [
        {name: value for name, value in one.items() if not name.startswith(differing)} for one in said
    ]
    return answers, [measured, states, [[line["participants"], line["pooled"]] for line in f.rounds()]]


def devices(f, planted="", names=OURS):
    """Start our devices, with the same pictures each time."""
    made = []
    for number, name in enumerate(names):
        pictures(f.folder / "pictures" / name, seed=number)
        made.append(f.device(name, planted=planted))
    return made


def complaints(f, processes):
    return [line for one in processes for line in f.log_of(one).splitlines() if "rejected" in line]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a maker of runs by (method, kind of the third device); each run is made once."""
    makers = {
        "old": (Device, ""), "new": (Newer, ""), "all old": (Device, SILENT), "no counts": (Device, ""),
        "old, by default": (Device, ""),
    }  # fmt: skip
    # Without a codec, the objects of all devices are comparable. "no counts" requests none, like an old coordinator.
    settings = dict.fromkeys(makers, {"codec": "off"})
    settings["no counts"] = {"codec": "off", "limits": CoordinatorLimits(confusion=0)}
    settings["old, by default"] = {}

    def make(which):
        method, who = which
        try:
            return ran(tmp_path_factory.mktemp("run"), method, *makers[who], **settings[who])
        except BrokerError as error:
            missing(error)

    return once_each(make)


def keys_of(heard, known):
    """Return the keys of messages beyond those of 1.0, as kind.key."""
    return {f"{kind}.{key}" for kind, fields in heard for key in fields.keys() - known[kind]}


@pytest.mark.parametrize("method", METHODS)
def test_an_old_device_gets_only_messages_that_it_knows_from_a_new_coordinator(runs, method):
    mixed = runs((method, "old"))
    assert [not r for r in mixed.rejected] == [True] * 3 and not mixed.complaints
    assert keys_of([(h.kind, h.fields) for h in mixed.heard], SPOKEN) <= TO_ALL
    assert [task.round for task in mixed.asks] == [1, 2, 3]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_learns_the_same_bits_with_old_and_with_new_devices(runs, method):
    mixed, *others = (runs((method, who)) for who in ("old", "new", "all old"))
    assert len(mixed.answers) >= 6
    for other in others:
        assert other.answers == mixed.answers
        assert other.learned == mixed.learned


@pytest.mark.parametrize("method", METHODS)
def test_a_lossless_codec_gives_the_same_bits_and_codes_no_update_of_an_old_device(runs, method):
    plain, coded = (runs((method, who)) for who in ("old", "old, by default"))
    assert coded.learned == plain.learned and not coded.complaints
    assert keys_of([(h.kind, h.fields) for h in coded.heard], SPOKEN) <= TO_ALL
    alike = {device for device in (*OURS, "third") if of(coded, device) == of(plain, device)}
    assert alike == {"third"}


def of(ran, device):
    """Return the updates of a device in the rounds of training."""
    return [found for _, phase, name, _, found in ran.answers if (phase, name) == ("train", device)]


def test_a_new_device_gets_tasks_that_use_follows_instead_of_a_manifest(runs):
    tasks = [h.fields for h in runs(("fedproto", "new")).heard if h.kind == "task"]
    assert [task["broadcast"] for task in tasks] == [None] * len(tasks)
    assert tasks[-1]["follows"]


@pytest.mark.parametrize("method", METHODS)
def test_new_devices_send_an_old_coordinator_the_same_updates_as_a_new_one(runs, tmp_path, method):
    before = runs((method, "no counts"))
    with Federation(tmp_path, *OURS, policy=TOGETHER) as f:
        old = OldCoordinator(f.credentials(COORDINATOR), receivers(f), RUN, before.plan, before.asks)
        ours = devices(f)
        old.conduct()
        assert [f.wait_for_end(one) for one in ours] == [0, 0]
        assert not complaints(f, ours)
    answers = {place: hashlib.sha256(body).digest() for place, body in old.answers.items()}
    # Only the updates of the newest rounds are kept.
    same = {(r, p, d): found for r, p, d, _, found in before.answers if d in OURS}
    assert len(answers) == 6 and same and same.items() <= answers.items()
    assert keys_of([(header["kind"], fields) for header, fields in old.heard], UPWARDS) <= TO_ALL
    assert all(fields["metrics"] for header, fields in old.heard if header["kind"] == "update")


def receivers(f):
    parties = {name: load_enrolled(f.fleet.folder_of(name) / CURRENT, time.time()) for name in OURS}
    return {name: mine.receive.public_key().public_bytes_raw() for name, mine in parties.items()}


# The forms of a device before masked sums.
BEFORE_SUMS = {"1.0": (), "1.1": tuple(form for form in forms.DEVICE_FORMS if form != forms.SECAGG)}


@pytest.mark.parametrize("version", BEFORE_SUMS)
def test_a_run_of_masked_sums_refuses_an_old_device_and_continues_without_it(tmp_path, version):
    """Other tests of this file show that the same devices serve a run without masked sums."""
    names = (*OURS, "three")
    sums = SecaggSettings(limit=64.0)
    with Federation(
        tmp_path, *names, "old", policy=TOGETHER, rounds=1, codec="off", secagg=sums, **METHODS["fedavg"]
    ) as f:
        coordinator = f.coordinator()
        old = f.raw("old", hello={"can": list(BEFORE_SUMS[version])})
        reason = old.wait("refusal").fields["reason"]
        ours = devices(f, names=names)
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert [f.wait_for_end(one) for one in ours] == [0] * 3
        log, rounds = f.log_of(coordinator), f.rounds()
    words = "it does not know secagg, without which it cannot take part: the run sums masked updates"
    assert reason.startswith(words) and reason.endswith("bring the device up to date")
    assert f"old cannot take part: {words}" in log and "Traceback" not in log
    assert not any(heard.kind == "task" for heard in old.heard)
    assert [line["participants"] for line in rounds] == [sorted(names)] * 2
