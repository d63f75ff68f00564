"""Files of every earlier format are opened, migrated, and used to continue a run."""

import json

import pytest

from protofleet.coordinator.spool.index import FORMAT
from protofleet.coordinator.spool.spool import Spool
from protofleet.edge_client.state import file as state
from protofleet.edge_client.state.device import DeviceState
from protofleet.methods.contract.plan import read_plan
from tests.stored.world import DEVICES, HERE, facts, federation, unpack

KEPT = sorted(HERE.glob("format-*.tar.xz"))


@pytest.fixture(params=KEPT, ids=lambda path: path.name.split(".")[0])
def kept(request, tmp_path):
    unpack(request.param, tmp_path)
    return tmp_path, json.loads(request.param.with_suffix("").with_suffix(".json").read_text())


def test_an_archive_of_the_present_format_is_stored():
    assert HERE / f"format-{FORMAT}.tar.xz" in KEPT


def test_a_coordinator_reads_the_facts_from_files_of_each_earlier_format(kept):
    folder, expected = kept
    found = facts(Spool(folder / "coordinator", durable=False))
    assert {**expected, "books": None} == {**found, "books": None}
    again = facts(Spool(folder / "coordinator", durable=False))
    assert again == found, "the files are migrated only once"


def test_a_device_reads_its_answers_from_files_of_each_earlier_format(kept):
    folder, expected = kept
    for device in DEVICES:
        device_state = DeviceState(folder / device, durable=False)
        found = {(a.round, a.phase, a.object) for a in device_state.saved.answers}
        newest = tuple(expected["books"][device][-1])
        assert newest in found and found <= {tuple(row) for row in expected["books"][device]}
        device_state.boot(1)
        assert json.loads((folder / device / "device.json").read_text())["format"] == state.FORMAT


def test_a_run_that_an_earlier_version_began_continues_to_its_end(kept):
    folder, expected = kept
    run = federation(folder)
    assert read_plan(run.plan.encode()) == run.plan
    assert expected["closed"] == {"train": list(DEVICES)} and expected["round"] == 2
    run.run(until=lambda: run.service.run.machine.round == 3)
    answers = {d: [(a.round, a.object) for a in agent.state.saved.answers] for d, agent in run.agents.items()}
    assert all(book[-1] == (2, expected["books"][d][-1][2]) for d, book in answers.items()), (
        "no device repeated its work"
    )
    run.run()
    assert run.service.finished and not any(run.service.run.spool.fallbacks.values())
    assert all(agent.state.saved.answers[-1].round == 4 for agent in run.agents.values())
