"""The joules of a round by device count every phase once, however often its answer arrives."""

from protofleet.coordinator.observe.energy import RoundEnergy, total_energy
from protofleet.coordinator.observe.measured import counted, names_of


def said(train, send):
    return {"joules.train": train, "joules.send": send, "accuracy.test.global": 0.5}


def test_a_round_of_two_phases_has_the_joules_of_both_and_a_replay_adds_none():
    energy = RoundEnergy()
    for _ in range(2):
        energy.note("a", "train", said(5.0, 1.0))
    energy.note("a", "classify", said(2.0, 0.5))
    energy.note("b", "train", {"accuracy.test.global": 0.5})
    assert energy.by_device() == {"a": {"train": 7.0, "send": 1.5}}, "who measures nothing is not there"


def test_joules_that_are_no_number_count_as_none():
    names = names_of(["global"])
    assert counted({"joules.train": float("nan"), "joules.send": 2.0}, names) == {"joules.send": 2.0}


def test_a_run_has_the_sum_of_its_lines_also_of_those_of_an_earlier_version():
    lines = [
        {"energy": {"a": {"train": 1.0, "send": 2.0}, "b": {"train": 4.0}}},
        {},
        {"energy": {"a": {"train": 8.0}}},
    ]
    assert total_energy(lines) == {"train": 13.0, "send": 2.0} and total_energy([{}]) == {}
