"""The device of docs/examples/device.py, which knows no method, among our devices at a secured Mosquitto."""

import ast
import json
import re
import sys
import time
from pathlib import Path

import msgpack
import pytest

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.round.policy import Policy
from protofleet.federation.enrol.key_folder import install
from protofleet.federation.enrol.lifecycle import renew
from protofleet.methods.contract import catalog as methods
from protofleet.methods.contract.plan import Network
from protofleet.protocol.security.enrolment import CURRENT, load_enrolled
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.wire.names import COORDINATOR
from tests.chaos.world import Process
from tests.conftest import missing
from tests.hostile import wire
from tests.hostile.federation import CLASSES, Federation
from tests.hostile.test_clocks import renewed
from tests.hostile.test_old_words import said_to, tell_again, until_connected
from tests.support.few_methods import with_own_arrays

pytestmark = [pytest.mark.broker, pytest.mark.slow]
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "device.py"
# The evaluation has no quorum, but it must wait for a slow device all the same.
TOGETHER = Policy(quorum=3, cohort=3, patience_seconds=60.0, settle_seconds=0.2, straggler_factor=0.0)
SETTINGS = {"fedpall": {"server_epochs": 1}, "fedhp": {"init_steps": 20}, "fcclplus": {"temperature": 1.0}}
EXAMPLES, BOTH = 10, ("one", "foreign")
ALONE = Policy(quorum=1, gather=1, settle_seconds=0.2, patience_seconds=600.0)
PAIR = Policy(quorum=2, cohort=2, patience_seconds=60.0, settle_seconds=0.2)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Yield two of our devices that stay from run to run, and a name for the foreign one."""
    try:
        made = Federation(
            tmp_path_factory.mktemp("fleet"), "one", "two", "foreign", policy=TOGETHER, rounds=2
        )
    except BrokerError as error:
        missing(error)
    with made:
        for name in ("one", "two"):
            made.device(name, stays=True)
        yield made


def foreign(fleet, called, classes=CLASSES):
    address, keys = fleet.address("foreign"), fleet.fleet.folder_of("foreign") / CURRENT
    given = [address.host, address.port, keys, fleet.folder / f"foreign-{called}", classes, EXAMPLES]
    command = [sys.executable, "-I", str(EXAMPLE), *map(str, given)]
    made = Process(f"foreign {called}", command, fleet.folder / f"foreign-{called}.log")
    fleet.processes.append(made)
    made.start()
    return made


def test_the_example_device_is_one_short_file_without_imports_of_protofleet():
    text = EXAMPLE.read_text()
    tree = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    named = [a.name for n in tree if isinstance(n, ast.Import) for a in n.names]
    named += [n.module for n in tree if isinstance(n, ast.ImportFrom)]
    others = {name.partition(".")[0] for name in named} - sys.stdlib_module_names
    assert others == {"paho", "msgpack", "cryptography"} and len(text.splitlines()) < 480


def rounds_of(fleet, name):
    lines = (fleet.folder / "runs" / name / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def verdicts(fleet, process):
    return re.findall(r"^round (\d+) (\w+): (\w+)", fleet.log_of(process), re.MULTILINE)


@pytest.mark.parametrize("method", with_own_arrays(methods.names()))
def test_the_example_device_takes_part_in_a_whole_run_with_each_set_of_array_kinds(fleet, method):
    shared = CoordinatorLimits(
        domains={"folder": ("one", "two")}
    )  # FedDAP refuses a device with another domain.
    settings = {"name": method, **SETTINGS.get(method, {})}
    coordinator = fleet.coordinator(name=method, method=settings, limits=shared)
    device = foreign(fleet, method)
    assert fleet.wait_for_end(coordinator) == 0, fleet.last_words()
    assert fleet.wait_for_end(device) == 0, fleet.log_of(device)
    said = verdicts(fleet, device)
    trained = [line["participants"] for line in rounds_of(fleet, method)[:-1]]
    assert {verdict for *_, verdict in said} == {"accepted"}
    assert {r for r, *_ in said} == {str(number) for number in range(1, len(trained) + 2)}
    assert "dropped" not in fleet.log_of(device)
    everyone = ["foreign", "one", "two"]
    if methods.load(method).Server.keeps_answers:
        # No device gets a second task, except this one if no samples can have the statistics that it makes up.
        assert trained in ([everyone], [everyone, ["foreign"]])
    else:
        assert trained == [everyone] * 2


class Interceptor:
    """An interceptor at a hostile broker that drops some frames and decrypts the updates among them.

    It can decrypt them because the test has all keys.
    """

    def __init__(self, fleet, drops):
        self.drops, self.heard, self.raw = drops, [], []
        place = fleet.fleet.folder_of(COORDINATOR) / CURRENT
        self.secret = load_enrolled(place, time.time()).receive
        fleet.proxy.passes = self.passes

    def passes(self, frame):
        if not self.drops(frame):
            return True
        self.raw.append(frame.data)
        self.heard.append(wire.opened(frame.data, self.secret) if frame.kind == "update" else frame)
        return False


def test_the_example_device_sends_the_same_update_with_a_higher_boot_after_a_kill(tmp_path):
    with Federation(tmp_path, "one", "foreign", taken_over=True, policy=PAIR, rounds=2) as f:
        interceptor = Interceptor(
            f, lambda frame: frame.party == "foreign" and frame.kind == "update" and not frame.down
        )
        coordinator = f.coordinator(method={"name": "fedproto"})
        f.device("one")
        device = foreign(f, "fedproto")
        f.wait_until(lambda: interceptor.heard, "an update")
        device.kill()
        device.start()
        # An update of the killed process may still arrive.
        boot = interceptor.heard[0][0]["boot"]
        f.wait_until(lambda: interceptor.heard[-1][0]["boot"] > boot, "the update of the next start")
        (first, said), (second, again) = interceptor.heard[0], interceptor.heard[-1]
        assert again["arrays"] == said["arrays"] != wire.EMPTY and second["boot"] > first["boot"]
        assert [first[key] for key in ("run", "round", "phase", "base")] == [
            second[key] for key in ("run", "round", "phase", "base")
        ]
        garbage = [b"", b"PF\x01", b"PF\x02", b"PF\x01\xff\xff" + bytes(80), interceptor.raw[0], bytes(5000)]
        for topic in ("coord/state", "down/foreign", "bcast/now"):
            for frame in garbage:
                f.proxy.tell("foreign", f"protofleet/1/{f.name}/{topic}", frame)
        f.proxy.passes = lambda frame: True
        assert f.wait_for_end(coordinator) == 0 and f.wait_for_end(device) == 0, f.log_of(device)
        assert {verdict for *_, verdict in verdicts(f, device)} == {"accepted"}


@pytest.mark.parametrize(("method", "asked"), [("fedhp", True), ("fedavg", False), ("fedproto", False)])
def test_the_example_device_states_class_counts_only_if_the_method_requests_them(tmp_path, method, asked):
    """This holds however often it gets a welcome.

    Here it gets one more, because the broker publishes its will.
    """
    with Federation(tmp_path, "one", "foreign", taken_over=True, policy=PAIR, rounds=1) as f:
        coordinator = f.coordinator(method={"name": method, **SETTINGS.get(method, {})})
        device = foreign(f, method)
        f.wait_until(lambda: [hello for hello in hellos(f) if hello["plan"]], "a hello with the plan")
        welcomes, will = len(said_to(f, "foreign", "welcome")), f.proxy.wills["foreign"]

        def doubted():
            f.proxy.tell(COORDINATOR, will.topic, will.data)
            return len(said_to(f, "foreign", "welcome")) > welcomes

        f.wait_until(doubted, "another welcome")
        f.device("one")
        assert f.wait_for_end(coordinator) == 0 and f.wait_for_end(device) == 0, f.log_of(device)
        told = [hello for hello in hellos(f) if hello.get("counts")]
        assert bool(told) == asked and all(sum(hello["counts"]) == EXAMPLES for hello in told)
        assert all(hello["plan"] for hello in told), "only in runs whose plan it knows"
        asks = {
            name: [w["about"].get("counts") for w in contents(f, name, said_to(f, name, "welcome"))]
            for name in BOTH
        }
        assert set(asks["foreign"]) == ({True} if asked else {None})
        assert set(asks["one"]) == {None}, "it knows the method, and does not list the form"


def hellos(f):
    return contents(f, COORDINATOR, f.proxy.frames("hello", "foreign", down=False))


def contents(f, receiver, frames):
    secret = load_enrolled(f.fleet.folder_of(receiver) / CURRENT, time.time()).receive
    return [wire.opened(frame.data, secret)[1] for frame in frames]


def test_the_example_device_requests_a_broadcast_that_was_lost(tmp_path):
    with Federation(tmp_path, "one", "foreign", taken_over=True, policy=PAIR, rounds=1) as f:
        interceptor = Interceptor(
            f, lambda frame: frame.party == "foreign" and frame.topic.endswith("/bcast/now")
        )
        coordinator = f.coordinator(method={"name": "fedproto"})
        f.device("one")
        device = foreign(f, "fedproto")
        assert f.wait_for_end(coordinator) == 0 and f.wait_for_end(device) == 0, f.log_of(device)
        assert interceptor.heard and f.proxy.frames("want", "foreign")
        assert len(verdicts(f, device)) == 2


@pytest.mark.parametrize("who", ["one", "foreign"])
def test_the_only_device_of_a_run_does_not_get_its_own_update_as_a_broadcast(tmp_path, who):
    """With FedAvg, the result of one update is that update. With a codec, an update is not a broadcast."""
    with Federation(tmp_path, "one", "foreign", taken_over=True, policy=ALONE, rounds=3) as f:
        coordinator = f.coordinator(method={"name": "fedavg", "lr": 0.02}, codec="off")
        device = f.device("one") if who == "one" else foreign(f, "alone")
        assert f.wait_for_end(coordinator) == 0 and f.wait_for_end(device) == 0, f.log_of(device)
        answered = [frame.header["base"] for frame in f.proxy.frames("update", who, down=False)]
        assert len(set(answered)) == 4, "each task has another broadcast"
        assert len(said_to(f, who, "block")) == 1 and not f.proxy.frames("want", who)


def test_an_update_and_a_manifest_that_fit_no_packet_are_sent_in_blocks(tmp_path):
    small = ("max_packet_size 5120",)
    with Federation(tmp_path, "one", "foreign", policy=PAIR, rounds=1, broker=small) as f:
        coordinator = f.coordinator(method={"name": "fedavg"}, network=Network("mlp", feature_size=128))
        f.device("one")
        device = foreign(f, "fedavg")
        assert f.wait_for_end(coordinator) == 0 and f.wait_for_end(device) == 0, f.log_of(device)
        assert [verdict for *_, verdict in verdicts(f, device)] == ["accepted"] * 2


def test_a_refusal_ends_the_example_device_with_one_line(tmp_path):
    with Federation(tmp_path, "foreign", rounds=1) as f:
        f.coordinator()
        device = foreign(f, "fedavg", classes=CLASSES + 2)
        assert f.wait_for_end(device) == 1, f.log_of(device)
        assert f.log_of(device) == "refused: it has 5 classes, this run has 3\n"


def has_begun_at(f, called, boot):
    """Make a folder of a device that has already used this boot."""
    folder = f.folder / f"foreign-{called}"
    folder.mkdir()
    (folder / "memory").write_bytes(msgpack.packb([boot - 1, 0, 0, "", []]))


def test_the_older_of_two_devices_with_one_name_ends_without_a_bye(tmp_path):
    with Federation(tmp_path, "one", "foreign", taken_over=True, policy=PAIR, rounds=2) as f:
        coordinator, later = f.coordinator(method={"name": "fedproto"}), int(time.time()) + 1000
        has_begun_at(f, "later", later)
        other = foreign(f, "later")
        f.wait_until(lambda: f.proxy.frames("welcome", down=True), "the coordinator to know the later one")
        other.kill()
        older = foreign(f, "older")
        assert f.wait_for_end(older) == 1 and f.log_of(older).startswith("refused: "), f.log_of(older)
        assert not f.proxy.frames("bye", "foreign")
        older.start()
        f.device("one")
        assert f.wait_for_end(coordinator) == 0 and f.wait_for_end(older) == 0, f.log_of(older)
        assert f.proxy.frames("bye", "foreign")[0].header["boot"] > later, "its next start is above"


def test_a_renewal_resets_the_boot_of_the_example_device(tmp_path):
    with Federation(tmp_path, "one", "foreign", policy=PAIR, rounds=1) as f:
        coordinator = f.coordinator(method={"name": "fedproto"})
        has_begun_at(f, "ahead", int(time.time()) + 10 * 86_400)
        device = foreign(f, "ahead")
        assert f.wait_for_end(device) == 1 and "enrol renew foreign" in f.log_of(device), f.log_of(device)
        authority = f.fleet.authority()
        approval = renew(authority, "foreign")
        install(f.fleet.folder_of("foreign"), approval, lambda seen: True, authority.now(), durable=False)
        f.device("one")
        device.start()
        assert f.wait_for_end(coordinator) == 0 and f.wait_for_end(device) == 0, f.log_of(device)


def test_the_example_device_drops_messages_of_an_earlier_run_after_a_renewal(tmp_path):
    with Federation(
        tmp_path,
        "foreign",
        taken_over=True,
        policy=ALONE,
        rounds=1,
        method={"name": "fedproto"},
    ) as f:
        spring, device = f.coordinator(name="spring"), foreign(f, "fedproto")
        assert f.wait_for_end(spring) == 0 and f.wait_for_end(device) == 0, f.log_of(device)
        kept, said = said_to(f, "foreign", "welcome", "task"), len(f.proxy.frames("update", "foreign"))
        f.proxy.passes = lambda frame: frame.kind != "update"
        summer = f.coordinator(name="summer")
        device.start()
        f.wait_until(lambda: len(f.proxy.frames("update", "foreign")) > said, "an update in the second run")
        device.kill()
        renewed(f, COORDINATOR)
        renewed(f, "foreign")
        f.proxy.passes = lambda frame: not (frame.down and frame.party == "foreign")
        before = len(hellos(f))
        device.start()
        until_connected(f, "foreign", before + 1)
        tell_again(f, "foreign", kept)
        f.proxy.tell("foreign", f"protofleet/1/{f.name}/coord/state", b"behind them")
        f.wait_until(lambda: "dropped a frame" in f.log_of(device), "the device to drop them")
        f.proxy.passes = lambda frame: True
        assert f.wait_for_end(summer) == 0 and f.wait_for_end(device) == 0, f.log_of(device)
        assert {frame.header["run"] for frame in f.proxy.frames("hello", "foreign", down=False)[before:]} <= {
            "",
            "summer",
        }
        updates = [frame for frame in f.proxy.frames("update", "foreign") if frame.header["run"] == "summer"]
        first = [frame for frame in updates if frame.header["phase"] == "train"]
        assert len({fields["arrays"] for fields in contents(f, COORDINATOR, first)}) == 1 < len(first)
