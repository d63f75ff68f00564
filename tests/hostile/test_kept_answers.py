"""A device joins late and another one is removed or enrolled again, in a run in which each device gets one task."""

import shutil
from dataclasses import replace

import pytest

from protofleet.coordinator.observe.rounds_file import read_rounds
from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.spool.spool import Spool
from protofleet.edge_client.state.device import DeviceState
from protofleet.federation.enrol.lifecycle import revoke
from protofleet.methods.contract.plan import Network
from tests.hostile.federation import Federation
from tests.hostile.test_clocks import enrolled_anew

TWO_AT_FIRST = Policy(quorum=1, gather=2, settle_seconds=0.2, patience_seconds=600.0)


def sent_by(f, device):
    """Return the bytes of the class means that the device has sent, from its own disk."""
    state = DeviceState(f.folder / "devices" / device, durable=False)
    (sent,) = [answer for answer in state.saved.answers if answer.phase == "describe"]
    return state.store.open(bytes.fromhex(sent.object))["prototypes"].tobytes()


def files_with(folder, data):
    return [path.name for path in folder.rglob("*") if path.is_file() and data in path.read_bytes()]


def state_of(run):
    state = Spool(run / "coordinator", durable=False).server_state()
    return {name: (value.dtype, value.shape, value.tobytes()) for name, value in state.items()}


@pytest.mark.slow
def test_only_a_late_device_gets_the_next_task_and_no_data_of_a_removed_device_stays(tmp_path):
    settings = {"policy": TWO_AT_FIRST, "method": {"name": "fedncm"}, "codec": "off"}
    with Federation(tmp_path, "one", "two", "three", **settings) as f:
        first = f.coordinator()
        one, two = f.device("one"), f.device("two")
        f.wait_until(f.rounds, "the first round")
        two.kill()
        answer = sent_by(f, "two")
        assert files_with(f.run, answer)
        revoke(f.fleet.authority(), "two", "stolen")
        three = f.device("three")
        assert [f.wait_for_end(process) for process in (first, one, three)] == [0, 0, 0], f.last_words()
        lines = read_rounds(f.run / "rounds.jsonl")
        assert [line["participants"] for line in lines] == [["one", "two"], ["three"], ["one", "three"]]
        sizes = [sum(line["payload"]["up"].values()) for line in lines]
        assert sizes[1] == len(answer) + 2 * 3 * 8 and sizes == [2 * sizes[1], sizes[1], 0]
        assert not files_with(f.run, answer)

        assert_head_of_a_run_of(f, "one", "three")


@pytest.mark.slow
def test_a_device_that_is_enrolled_again_gets_a_new_task_and_no_data_of_its_old_answer_stays(tmp_path):
    settings = {"policy": TWO_AT_FIRST, "method": {"name": "fedncm"}, "codec": "off"}
    with Federation(tmp_path, "one", "two", "three", **settings) as f:
        first = f.coordinator()
        one, two = f.device("one"), f.device("two")
        f.wait_until(f.rounds, "the first round")
        two.kill()
        answer = sent_by(f, "two")
        enrolled_anew(f, "two")
        for folder in ("devices", "pictures"):
            shutil.rmtree(f.folder / folder / "two")
        devices = [one, f.device("two"), f.device("three")]
        ends = [f.wait_for_end(process) for process in (first, *devices)]
        assert ends == [0, 0, 0, 0], f.last_words()
        asked = [line["participants"] for line in read_rounds(f.run / "rounds.jsonl")]
        assert asked[0] == ["one", "two"] and asked[-1] == ["one", "three", "two"]
        assert sorted(sum(asked[1:-1], [])) == ["three", "two"]
        assert not files_with(f.run, answer)
        assert_head_of_a_run_of(f, "one", "two", "three")


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [{"name": "fed3r"}, {"name": "ghofl", "head": "lda"}], ids=["fed3r", "lda"]
)
def test_a_device_that_is_killed_during_its_upload_sends_the_rest_and_counts_once(tmp_path, method):
    settings = {
        "policy": TWO_AT_FIRST,
        "method": method,
        "network": Network("mlp", embedding_size=1024),
        "rounds": 1,
        "codec": "off",
    }
    with Federation(tmp_path, "one", "two", taken_over=True, **settings) as f:
        f.proxy.passes = lambda frame: not is_block_of_two(frame) or blocks_of_two(f) <= 2
        first, one, two = f.coordinator(), f.device("one"), f.device("two")
        f.wait_until(lambda: blocks_of_two(f) > 2, "some blocks of the answer")
        two.kill()
        sent = blocks_of_two(f)
        f.proxy.passes = lambda frame: True
        two.start()
        assert [f.wait_for_end(process) for process in (first, one, two)] == [0, 0, 0], f.last_words()
        (line, _) = read_rounds(f.run / "rounds.jsonl")
        assert line["participants"] == ["one", "two"]
        again = blocks_of_two(f) - sent
        assert_head_of_a_run_of(f, "one", "two")
        assert again < blocks_of_two(f) - sent - again, "the blocks that had arrived were sent again"


def is_block_of_two(frame):
    return frame.party == "two" and not frame.down and frame.kind == "block"


def blocks_of_two(f):
    return sum(map(is_block_of_two, list(f.proxy.seen)))


def assert_head_of_a_run_of(f, *devices):
    """Require the bits of another run, in which these devices are present from the beginning."""
    second = f.coordinator(name="other", policy=replace(TWO_AT_FIRST, gather=len(devices)))
    again = [f.device(device) for device in devices]
    assert all(f.wait_for_end(process) == 0 for process in (second, *again)), f.last_words()
    assert state_of(f.run) == state_of(f.run.parent / "other")
