"""The joules of a round by device count every phase once, even if its update arrives several times."""

from protofleet.coordinator.observe.energy import RoundEnergy, total_energy
from protofleet.coordinator.observe.measured import counted, names_of


def said(train, send):
    return {"joules.train": train, "joules.send": send, "accuracy.test.global": 0.5}


def test_a_round_has_the_joules_of_each_phase_once_also_after_a_replay():
    energy = RoundEnergy()
    for _ in range(2):
        energy.note("a", "train", said(5.0, 1.0))
    energy.note("a", "classify", said(2.0, 0.5))
    energy.note("b", "train", {"accuracy.test.global": 0.5})
    assert energy.by_device() == {"a": {"train": 7.0, "send": 1.5}}, (
        "a device that measures no joules has no row"
    )


def test_joules_that_are_not_finite_are_left_out():
    names = names_of(["global"])
    assert counted({"joules.train": float("nan"), "joules.send": 2.0}, names) == {"joules.send": 2.0}


def test_a_run_has_the_sum_of_its_round_lines_also_with_lines_of_an_earlier_version():
    lines = [
        {"energy": {"a": {"train": 1.0, "send": 2.0}, "b": {"train": 4.0}}},
        {},
        {"energy": {"a": {"train": 8.0}}},
    ]
    assert total_energy(lines) == {"train": 13.0, "send": 2.0} and total_energy([{}]) == {}
