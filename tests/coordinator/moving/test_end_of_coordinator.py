"""The command `hand-over` ends a coordinator once, and no coordinator starts in a folder that is being moved."""

import queue

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.control import commands_of
from protofleet.coordinator.main import run_coordinator
from protofleet.coordinator.moving.hand_over import hand_over
from protofleet.coordinator.moving.place import MovedError
from protofleet.coordinator.queue.commands import Sender
from protofleet.coordinator.queue_requests import queue_commands
from protofleet.coordinator.run_service import run_service
from protofleet.coordinator.service_settings import ServiceSettings
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.transport.base import StopRequest
from protofleet.protocol.wire.messages import State
from tests.coordinator.moving.world import FEDERATION, queue_place, run_place
from tests.crash.queue_world import EXPERIMENT, queue_world, virtual


def request(number=1, verb="hand-over", run="", **more):
    return {"id": f"{number:032x}", "verb": verb, "run": run, "reason": "", **more}


def sender(*grants):
    return Sender(frozenset(grants), 1, 1, "")


@pytest.fixture
def world(tmp_path):
    made = queue_world(tmp_path / "world")
    with virtual(made):
        made.begun = True
        made.boot_coordinator()
        yield made


def test_a_queue_that_gets_the_command_to_end_publishes_that_it_is_offline_and_moved(world):
    said = []
    announce = world.connection.context.link.announce
    world.connection.context.link.announce = lambda state, **more: (
        said.append(state) or announce(state, **more)
    )
    assert not world.service.finished
    answer = world.handle("local:ann", request())
    assert answer["verdict"] == "done" and "its runs go on where it is started again" in answer["words"]
    assert world.service.finished and said == [State(False, "moved")]


def test_a_repeated_command_does_not_end_the_restarted_coordinator(world):
    assert world.handle("local:ann", request())["verdict"] == "done"
    world.kill("coordinator")
    world.disk.die()
    world.boot_coordinator()
    assert world.handle("local:ann", request())["verdict"] == "done"
    assert not world.service.finished
    world.handle("local:ann", request(2))
    assert world.service.finished


def test_a_remote_operator_needs_the_grant_and_must_hand_over_on_the_machine_of_the_coordinator(world):
    denied = world.handle("carol", request(), sender("view", "run", "admit"))
    assert denied["verdict"] == "denied" and "no grant 'lead', which hand-over needs" in denied["words"]
    refused = world.handle("dora", request(), sender("lead"))
    assert refused["verdict"] == "refused" and "on the machine of the coordinator" in refused["words"]
    assert not world.service.finished


def test_the_command_ends_the_coordinator_of_one_run_too(tmp_path):
    class Run:
        name = "red"

    events = queue.SimpleQueue()
    handle = commands_of(Run(), events)
    assert handle("carol", request(), sender("run"))["verdict"] == "denied"
    assert handle("dora", request(), sender("lead"))["verdict"] == "refused" and events.empty()
    assert handle("local:ann", request(run="red"))["verdict"] == "done"
    assert events.get_nowait() == StopRequest("moved")


@pytest.mark.parametrize("kind", ["handed over", "half unpacked"])
def test_no_queue_and_no_run_starts_in_a_folder_that_is_being_moved(tmp_path, kind):
    disk = Disk(durable=False)
    places = [queue_place(tmp_path / "queue"), run_place(tmp_path / "run")]
    for place in places:
        if kind == "handed over":
            hand_over(place, FEDERATION, tmp_path / f"{place.top}.tar", lambda: None, disk=disk)
        else:
            place.incoming.mkdir()
    words = "never starts here again" if kind == "handed over" else "is only partly unpacked"
    settings = ServiceSettings.of({"federation": FEDERATION, "folder": str(places[0].runs)})
    with pytest.raises(MovedError, match=words):
        run_service(settings, "", False, lambda folder: None)
    table = {"name": "red", "rounds": 3, "classes": 3, "method": {"name": "fedavg"}}
    with pytest.raises(MovedError, match=words):
        run_coordinator(CoordinatorSettings(folder=str(places[1].runs), **table), "")


def test_a_queue_refuses_a_run_that_was_handed_over_and_no_older_copy_of_it_continues(tmp_path, capsys):
    place = run_place(tmp_path / "runs")
    hand_over(place, FEDERATION, tmp_path / "red.tar", lambda: None, disk=Disk(durable=False))
    settings = ServiceSettings.of({"federation": FEDERATION, "folder": str(place.runs)})
    handle = queue_commands(settings, lambda command, more, refusal: {"words": refusal}, lambda call: call())
    experiment = EXPERIMENT.format(rounds=3, seed=1, method="fedavg")
    for name, words in (("red", "never starts here again"), ("green", "")):
        more = {"experiment": experiment, "after": "", "priority": 0, "from": ""}
        assert words in handle("local:ann", request(1, "submit", name, **more))["words"]
    assert handle("local:ann", request(1, "submit", "green", **more))["words"] == ""
    assert main(["go-on", str(place.runs / "red"), "--from-round", "9"]) == 3
    assert "never starts here again" in capsys.readouterr().err


def test_each_failure_of_the_command_is_one_line_with_an_exit_code(tmp_path, capsys):
    file = tmp_path / "service.toml"
    file.write_text(f'federation = "{FEDERATION}"\nfolder = "{tmp_path / "runs"}"\n')
    to = ["--to", str(tmp_path / "lab.tar")]

    def said(*line):
        code = main([*line])
        return code, capsys.readouterr().err.removesuffix("\n")

    code, words = said("hand-over", str(file), *to)
    assert code == 2 and "no coordinator has run in the queue in" in words and "\n" not in words
    queue_place(tmp_path / "runs")
    assert main(["hand-over", str(file), *to, "--json"]) == 0
    assert '"left": [' in capsys.readouterr().out
    code, words = said("coordinator", str(file))
    assert code == 3 and "was handed over to" in words and "\n" not in words
    code, words = said("coordinator", str(file), "--from", str(tmp_path / "none.tar"))
    assert code == 2 and "there is no archive" in words
    (tmp_path / "lab.tar").write_bytes(b"x" * 9999)
    code, words = said("coordinator", str(file), "--from", str(tmp_path / "lab.tar"))
    assert code == 1 and "cannot be unpacked: the header of manifest.json cannot be read" in words
