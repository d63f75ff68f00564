"""`protofleet.testing.simulate` gives the numbers of a whole federation in one process without a broker."""

import pytest
import torch

import protofleet
from protofleet.methods import fedavg
from protofleet.testing import simulate
from tests.support.few_methods import FEW_STEPS
from tests.support.small_federation import SIZE, plan, shard, simulation


def pair(part):
    return part.x, part.y


DATA = {
    f"device-{i}": protofleet.Data(
        pair(shard(i).train), pair(shard(i).test), 3, pair(shard(i).validation), shard(i).domain
    )
    for i in range(3)
}


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "fedlsa"])
def test_simulate_gives_the_accuracies_of_a_federation_with_and_without_reboots(method, tmp_path):
    settings = plan(method, **FEW_STEPS).hyper
    found = simulate(method, DATA, rounds=3, settings=settings, seed=1)
    whole = simulation(tmp_path, method).run()
    for device, agent in whole.agents.items():
        measured = agent.state.saved.answers[-1].metrics
        for view, by_device in found.final.items():
            assert by_device[device] == measured[f"accuracy.test.{view}"]
    state = whole.service.run.server_runner.server.state()
    assert all(torch.equal(value, found.server.state()[name]) for name, value in state.items())
    again = simulate(method, DATA, rounds=3, settings=settings, seed=1, reboots=True)
    assert (again.final, again.rounds) == (found.final, found.rounds)
    assert found.accuracy > 2 / 3 and len(found.rounds) == 3 and set(found.clients) == set(DATA)


def test_simulate_uses_one_thread_of_torch_and_restores_the_number():
    seen = set()

    class Client(fedavg.Client):
        def run(self, ask):
            seen.add(torch.get_num_threads())
            return super().run(ask)

    method, before = protofleet.Method("none", fedavg.Hyper, fedavg.Server, Client), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        simulate(method, DATA, rounds=1, settings={"epochs": 1})
        assert seen == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_reboots_change_the_result_of_a_method_that_does_not_save_its_state():
    class Forgetful(fedavg.Server):
        def state(self):
            return {}

        def restore(self, state):
            pass

    method = protofleet.Method("none", fedavg.Hyper, Forgetful, fedavg.Client)
    settings = {"epochs": 1, "lr": 0.01}
    once, again = (
        simulate(method, DATA, rounds=3, settings=settings, reboots=reboots) for reboots in (False, True)
    )
    assert once.rounds != again.rounds


def test_an_update_with_values_that_are_not_finite_is_refused():
    class Liar(fedavg.Client):
        def run(self, ask):
            return {name: value * float("nan") for name, value in super().run(ask).items()}

    method = protofleet.Method("none", fedavg.Hyper, fedavg.Server, Liar)
    with pytest.raises(
        protofleet.RunError, match="update of device-0 to train in round 1 is refused: .* not finite"
    ):
        simulate(method, DATA, settings={"epochs": 1})


def test_the_bytes_of_a_round_are_the_sizes_of_its_tensors():
    found = simulate("fedavg", DATA, rounds=1, settings={"epochs": 1})
    size = sum(value.nbytes for value in found.server.payload().values())
    assert (found.rounds[0].bytes_up, found.rounds[0].bytes_down) == (3 * size, 3 * size)


def test_simulate_accepts_a_method_from_a_file_and_a_network_from_a_function(tmp_path):
    (tmp_path / "same.py").write_text("from protofleet.methods.fedavg import METHOD\n")

    def build(image, classes, feature_size):
        channels, height, width = image
        layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * height * width, 4))
        return protofleet.Net(layers, 4, classes)

    own = simulate(
        tmp_path / "same.py", DATA, rounds=1, settings={"epochs": 1}, network=protofleet.network(build)
    )
    assert own.server.model.embedding_size == 4
    assert (
        simulate(str(tmp_path / "same.py"), DATA, rounds=1).final == simulate("fedavg", DATA, rounds=1).final
    )


def odd(side, labels):
    x, y = torch.zeros(len(labels), 3, side, side), torch.tensor(labels)
    return protofleet.Data((x, y), (x, y), 3)


MISTAKES = {
    "no data": ({}, {}, "data is empty; give the data of one or more devices"),
    "no Data": ({"a": 7}, {}, "the data of a are int, they must be Data"),
    "no method": (DATA, {"method": "fedmagic"}, "no method 'fedmagic'; did you"),
    "no network": (DATA, {"network": "vgg"}, "no network 'vgg'"),
    "too large a network": (DATA, {"network": "resnet18"}, f"takes images from 16x16 on, not {SIZE}x{SIZE}"),
    "no rounds": (DATA, {"rounds": 0}, "rounds is 0"),
    "half a round": (DATA, {"rounds": 2.5}, "rounds is 2.5, but must be a whole number"),
    "no seed": (DATA, {"seed": "a"}, 'seed is "a", but must be a whole number'),
    "a list of data": ([], {}, "data is list, it must be Mapping"),
    "a function": (DATA, {"method": len}, "method is builtin_function_or_method, it must be Method or str or Path"),
    "a setting": (DATA, {"settings": {"tua": 1}}, "method.tua is not a setting"),
    "a temperature": (DATA, {"method": "fcclplus"}, "temperature is 3, and the run has 3 classes"),
    "shapes": (
        DATA | {"z": odd(9, [0, 1, 2] * 9)}, {},
        rf"z has samples of the shape \(3, 9, 9\) and 3 classes, but device-0 has .* \(3, {SIZE}, {SIZE}\)",
    ),
    "labels": ({"a": odd(8, [0, 1, 2, 3])}, {}, "a: Data.train has labels from 0 to 3"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_arguments_are_refused_with_the_reason(mistake):
    data, arguments, words = MISTAKES[mistake]
    with pytest.raises((protofleet.SettingsError, protofleet.RunError), match=words):
        simulate(arguments.pop("method", "fedavg"), data, **arguments)
