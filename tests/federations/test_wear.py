"""A device's disk use is bounded.

A round writes the received broadcast, the computed answer and state, and one small file.
"""

import pytest

from benchmarks.programs.wear import Written, one, run
from protofleet.methods.contract.plan import Network, Plan
from tests.support.few_methods import few
from tests.support.small_federation import simulation

BOOK = 8192


@pytest.mark.parametrize("method", few(["fedavg", "fedproto", "fedplcc"], 3))
def test_a_longer_run_needs_no_more_disk_space_and_writes_no_more_bytes_a_round(method):
    short, long = (one(method, rounds, Network("mlp", 8)) for rounds in (4, 12))
    assert long["folder_bytes_at_most"] < 1.1 * short["folder_bytes_at_most"]
    # The long run makes answers in 12 of 13 rounds, the short one in 4 of 5.
    assert long["made_bytes_a_round"] < 1.2 * short["made_bytes_a_round"]
    assert long["book_bytes_a_round"] < BOOK


def test_each_round_writes_broadcast_answer_and_state_once(tmp_path):
    written = Written()
    plan = Plan("fedavg", 10, 3, 1, 8, Network("mlp", 8), {"epochs": 1, "batch": 32})
    run(plan, tmp_path, written)
    objects = [p.stat().st_size for p in (tmp_path / "device-0" / "objects").iterdir()]
    model, asks = max(objects), 4
    assert written.bytes["received"] <= asks * model
    assert written.bytes["made"] <= 3 * model + asks * 16, "the evaluation's answer is empty"


def test_the_files_of_a_finished_round_are_removed(tmp_path):
    done = simulation(tmp_path, "fedpall")
    agent = done.agents["device-1"]
    done.run(until=lambda: agent.state.last_round == 3 and agent.view.awaits_receipt)
    rounds = {answer.round for answer in agent.state.saved.answers}
    assert rounds == {3}
    named = {agent.state.saved.half, agent.state.saved.broadcast}
    named |= {answer.object for answer in agent.state.saved.answers}
    others = {name.hex() for name in agent.state.store.names()} - named
    assert len(others) <= 1, "the earlier state of the half"


def test_a_repeated_task_gets_the_same_bytes_after_a_restart(tmp_path):
    run = simulation(tmp_path, "fedpall")
    agent = run.agents["device-1"]
    run.run(until=lambda: agent.state.last_round == 2)
    before, question = agent.state.saved.answers[-1], agent.state.saved.answers[-1].question
    body = agent.state.store.read(bytes.fromhex(before.object), 0, 64)
    run.kill("device-1")
    run.boot_device("device-1")
    memory = run.agents["device-1"].state
    assert memory.answer_to(question).object == before.object
    assert memory.store.read(bytes.fromhex(before.object), 0, 64) == body
