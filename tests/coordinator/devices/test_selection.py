"""A run takes the devices that its settings select."""

import pytest

from protofleet.coordinator.devices.labels import DeviceLabels
from protofleet.coordinator.devices.selection import DeviceSelection, SelectedDevices
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.messages import Hello

ENROLLED = ("a", "b", "north")
ASSIGNED = {
    "a": DeviceLabels("hall", {"gpu": "orin", "site": "x"}),
    "b": DeviceLabels("yard", {"gpu": "orin"}),
}


def test_a_run_takes_all_devices_or_the_devices_that_meet_each_key_of_its_selection():
    hellos = [Hello("a", 5, 5, domain="north"), Hello("b", 5, 5, domain="south"), Hello("north", 5, 5)]

    def taken(**selection):
        chosen = SelectedDevices(DeviceSelection(**selection), ASSIGNED)
        found = [hello.device for hello in hellos if chosen.problem_with(hello) is None]
        assert chosen.of(ENROLLED) == set(found), "after the hellos the domains are known"
        return found

    assert taken() == ["a", "b", "north"]
    assert taken(names=("a", "b")) == ["a", "b"]
    assert taken(names=("a", "b"), without=("a",)) == ["b"]
    assert taken(domains=("north",)) == ["a", "north"], "a device without a domain is its own domain"
    assert taken(groups=("hall", "yard")) == ["a", "b"] and taken(groups=("yard",)) == ["b"]
    assert taken(labels={"gpu": "orin"}) == ["a", "b"] and taken(labels={"gpu": "orin", "site": "x"}) == ["a"]
    assert taken(groups=("yard",), labels={"site": "x"}) == []
    assert SelectedDevices(DeviceSelection(domains=("north",)), ASSIGNED).of(ENROLLED) == set(ENROLLED)
    words = SelectedDevices(DeviceSelection(domains=("north",)), ASSIGNED).problem_with(hellos[1]).message
    assert "'south'" in words and "north" in words and "select.domains" in words


def test_changed_labels_change_the_devices_of_an_active_run_and_claims_of_a_device_do_not():
    assigned = {}
    chosen = SelectedDevices(DeviceSelection(groups=("hall",), most=1), assigned)
    claim = Hello("a", 5, 5, domain="hall", software="group=hall")
    assert chosen.problem_with(claim) and not chosen.selects("a")
    assigned |= {"a": DeviceLabels("hall"), "b": DeviceLabels("hall")}
    assert chosen.problem_with(claim) is None and chosen.of(ENROLLED) == {"a", "b"}
    assert chosen.count(ENROLLED) == 1


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        (
            {"names": ("a", "nort")},
            "select.names has 'nort', which is not enrolled; did you mean north? there are a, b",
        ),
        ({"without": ("bb",)}, "select.without has 'bb', which is not enrolled; did you mean b?"),
        (
            {"groups": ("hall",)},
            "leaves 1 of 3 enrolled devices (a), but policy.quorum is 2; select more devices",
        ),
        ({"labels": {"gpu": "nano"}}, "leaves 0 of 3 enrolled devices, but policy.quorum is 2"),
        ({"labels": {"gpu": "orin"}, "domains": ("nowhere",)}, ""),
    ],
)
def test_a_selection_that_cannot_reach_the_quorum_is_refused_with_names_numbers_and_a_fix(selection, words):
    said = DeviceSelection(**selection).problem(2, ENROLLED, ASSIGNED)
    assert words in said if words else not said


def test_groups_and_labels_are_refused_without_a_queue_of_runs():
    with pytest.raises(
        SettingsError, match="select.groups needs a coordinator that conducts submitted runs.* set sele"
    ):
        DeviceSelection(groups=("hall",)).demand_no_labels("this one conducts one run")


def test_a_run_of_all_devices_needs_as_many_enrolled_devices_as_its_quorum():
    enrolled = frozenset(("a", "b"))
    assert DeviceSelection().problem(2, enrolled, {}) == ""
    said = DeviceSelection().problem(3, enrolled, {})
    assert said.startswith(
        "2 devices are enrolled (a, b), but policy.quorum is 3; enrol more devices, or lower"
    )
