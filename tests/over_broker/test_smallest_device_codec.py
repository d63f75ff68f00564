"""The device of docs/examples/device.py in runs with a codec, together with a device of protofleet."""

import sys

import msgpack
import numpy as np
import pytest

from protofleet.edge_client.coded_answer import code_answer
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import Answer
from protofleet.edge_client.work_queue import Question
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.coding.delta import bytes_of
from protofleet.protocol.security.enrolment import CURRENT
from protofleet.protocol.settings.codec import CodecSettings, CodecStage
from protofleet.protocol.wire.messages import NOTHING
from protofleet.protocol.wire.names import COORDINATOR
from tests.chaos.world import Process
from tests.hostile.federation import CLASSES, SIZE, Federation
from tests.over_broker.test_smallest_device import (
    EXAMPLE,
    EXAMPLES,
    PAIR,
    contents,
    foreign,
    rounds_of,
    verdicts,
)

pytestmark = [pytest.mark.broker, pytest.mark.slow]
ROUNDS = 3
DOWN = {"weights": CodecStage("ternary", "broadcast", keep=4)}
UP = {
    "int8": CodecStage("int8", "broadcast", feedback=True),
    "ternary": CodecStage("ternary", "broadcast", keep=10, feedback=True),
    "exact": CodecStage(against="broadcast"),
}
TIMES = {"int8": 3.5, "ternary": 12, "exact": 0.9}  # fewer bytes, at least
# Code that makes the example write down what it codes: the task, the arrays, the broadcast, and the coded arrays.
NOTES = """
plainly = Device.coded
def noted(self, arrays, sent):
    found, (header, fields) = plainly(self, arrays, sent), self.task
    with open(sys.argv[0], "ab") as file:
        file.write(msgpack.packb([header.round, header.phase, fields.get("took"), arrays, sent, found]))
    return found
Device.coded = noted
sys.argv[0] = sys.argv.pop()
"""


def noting(fleet, notes):
    """Start the example, which writes what it codes to the file `notes`."""
    address, keys = fleet.address("foreign"), fleet.fleet.folder_of("foreign") / CURRENT
    given = [
        address.host,
        address.port,
        keys,
        fleet.folder / "foreign",
        CLASSES,
        EXAMPLES,
        notes,
    ]
    text, main = EXAMPLE.read_text().split('if __name__ == "__main__":')
    program = f'{text}{NOTES}\nif __name__ == "__main__":{main}'
    command = [sys.executable, "-I", "-c", program, *map(str, given)]
    made = Process("foreign", command, fleet.folder / "foreign.log")
    fleet.processes.append(made)
    made.start()
    return made


def arrays_of(told):
    return {
        name: np.array([*numbers], dtype).reshape(shape) for name, (dtype, shape, numbers) in told.items()
    }


class ProductCoder:
    """The product's code for updates, with the arrays of another device."""

    def __init__(self, folder, plan):
        self.plan, self.state = plan, DeviceState(folder, durable=False)
        self.state.begin("run", plan.digest.hex())

    def coded(self, round, phase, took, arrays, broadcast):
        name = f"{round:03}{phase}".encode().hex().ljust(64, "0")
        question = Question(name, round, phase, b"", 1, tuple(took) if took else None)
        coded = code_answer(self.plan, "foreign", self.state, question, arrays, broadcast)
        kept = self.state.store.put(coded.arrays).object.hex()
        answer = Answer(name, round, phase, "", kept, EXAMPLES, {}, *(took or ()))
        self.state.save_answer(answer, NOTHING, 1, coded.residuals)
        return bytes_of(coded.arrays)


@pytest.mark.parametrize("form", UP)
def test_the_example_device_sends_the_same_coded_bytes_as_a_device_of_protofleet(tmp_path, form):
    codec, network = CodecSettings({"weights": UP[form]}, DOWN), Network("mlp", feature_size=40)
    settings = {"method": {"name": "fedavg", "lr": 0.02}, "codec": codec, "network": network}
    with Federation(tmp_path, "one", "foreign", taken_over=True, policy=PAIR, rounds=ROUNDS) as f:
        coordinator = f.coordinator(**settings)
        f.device("one")
        notes = tmp_path / "notes"
        device = noting(f, notes)
        assert f.wait_for_end(coordinator) == 0 and f.wait_for_end(device) == 0, f.log_of(device)
        assert {verdict for *_, verdict in verdicts(f, device)} == {"accepted"}
        sent = {
            fields["arrays"]
            for fields in contents(f, COORDINATOR, f.proxy.frames("update", "foreign", down=False))
        }
        lines = rounds_of(f, "run")
    told = [*msgpack.Unpacker(notes.open("rb"), max_buffer_size=0)]
    answers = [one for one in told if one[3]]
    assert [(round, phase) for round, phase, *_ in answers] == [(n, "train") for n in range(1, ROUNDS + 1)]
    assert [took for _, _, took, *_ in answers] == [None, [1, "train"], [2, "train"]]
    plan = Plan("fedavg", CLASSES, ROUNDS, size=SIZE, network=network, codec=codec)
    product = ProductCoder(tmp_path / "product", plan)
    for round, phase, took, arrays, broadcast, found in told:
        body = bytes_of(arrays_of(found))
        assert body == product.coded(round, phase, took, arrays_of(arrays), arrays_of(broadcast))
        assert body in sent
        assert not arrays or [*found] == ["weights.~"]
    before, after = (lines[1][key]["up"]["weights"] for key in ("uncoded", "payload"))
    assert after * TIMES[form] <= before


def test_the_example_device_leaves_a_run_with_an_unknown_codec_and_names_the_codec(tmp_path):
    with Federation(tmp_path, "one", "foreign", taken_over=True, policy=PAIR, rounds=1) as f:
        f.coordinator(codec="safe")
        device = foreign(f, "safe")
        assert f.wait_for_end(device) == 1, f.log_of(device)
        line = "not known to both, this device and this coordinator: codec form rice"
        assert f.log_of(device) == f"{line}\n"
        f.wait_until(lambda: f.proxy.frames("bye", "foreign", down=False), "its last word")
        (bye,) = contents(f, COORDINATOR, f.proxy.frames("bye", "foreign", down=False))
        assert bye == {"reason": line}
