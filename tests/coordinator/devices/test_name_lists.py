"""A hello with the hash of class names gets the names that any device has sent before."""

from dataclasses import replace

from protofleet.coordinator.devices.name_lists import MOST_LISTS, NameLists
from protofleet.protocol.wire.class_names import digest_of
from protofleet.protocol.wire.messages import Hello

NAMES = ("cat", "dog")
FULL = Hello("one", 2, 10, names=NAMES)


def by_hash(device, names=NAMES):
    return Hello(device, 2, 10, names_hash=digest_of(names))


def test_the_names_of_one_device_complete_the_hellos_of_all_devices():
    lists = NameLists()
    assert lists.completed(by_hash("one")) == by_hash("one"), "no device has sent the names yet"
    assert lists.completed(FULL) == FULL
    assert lists.completed(by_hash("one")) == FULL
    assert lists.completed(by_hash("two")) == replace(FULL, device="two")


def test_a_hello_without_names_and_without_a_hash_stays_as_it_is():
    lists = NameLists()
    lists.completed(FULL)
    assert lists.completed(Hello("two", 2, 10)) == Hello("two", 2, 10)


def test_only_the_newest_lists_are_kept():
    lists = NameLists()
    lists.completed(FULL)
    for i in range(MOST_LISTS):
        lists.completed(replace(FULL, names=(f"a{i}", f"b{i}")))
        if i < MOST_LISTS - 1:
            lists.completed(FULL)  # A list that is sent again is the newest one.
    assert lists.completed(by_hash("two")).names == NAMES
    assert lists.completed(by_hash("two", ("a0", "b0"))).names == ()
