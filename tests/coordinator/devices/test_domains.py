"""Each device counts for the right domain, in any order of messages."""

from hypothesis import given
from hypothesis import strategies as st

from protofleet.coordinator.devices.domains import assign_domain, domain_of

SHARED = {"street": ("board-*", "kerb"), "field": ("kerb",)}
DEVICES = ("board-1", "board-2", "kerb", "liar", "street")
CLAIMS = ("", "street", "field", "garden", "street (board-1)", "garden (kerb)", "kerb", "board-1", "x")


def settled(*said, shared=SHARED):
    known = {}
    for device, claim in said:
        assign_domain(device, claim, known, shared)
    return known


def test_listed_devices_share_a_domain_and_another_device_gets_a_separate_name():
    known = settled(("liar", "street"), ("board-1", "street"), ("board-2", "street"))
    assert known == {"liar": "street (liar)", "board-1": "street", "board-2": "street"}


def test_a_domain_that_is_not_listed_belongs_to_the_first_device_that_claims_it():
    known = settled(("a", "garden"), ("b", "garden"), ("c", ""), ("b", "else"), shared={})
    assert known == {"a": "garden", "b": "garden (b)", "c": "c"}


def test_settings_that_change_during_a_restart_apply_to_known_devices():
    known = {"board-2": "street (board-2)", "liar": "street"}
    assign_domain("board-2", "street", known, SHARED)
    assign_domain("liar", "street", known, SHARED)
    assert known == {"board-2": "street", "liar": "street (liar)"}


def test_a_refused_claim_of_a_domain_is_logged_once_with_the_setting_that_allows_it(caplog):
    settled(("a", "garden"), ("b", "garden"), ("b", "garden"), ("b", "shed"), shared={})
    (record,) = caplog.records
    assert "b claims the domain 'garden', which belongs to other devices" in record.message
    assert "add it to limits.domains" in record.message


@given(st.lists(st.tuples(st.sampled_from(DEVICES), st.sampled_from(CLAIMS)), max_size=40))
def test_no_order_of_hellos_takes_a_domain_from_its_device_or_gives_a_device_two_domains(said):
    known, names = {}, {}
    for device, claim in said:
        before = dict(known)
        assign_domain(device, claim, known, SHARED)
        names.setdefault(device, set()).add(known[device])
        assert {d: known[d] for d in before if d != device} == {d: before[d] for d in before if d != device}
    shared = {d for d, domain in known.items() if domain in SHARED}
    assert all(domain_of(d, known[d], known, SHARED) == known[d] for d in shared), (
        "only listed devices share a domain"
    )
    alone = [domain for domain in known.values() if domain not in SHARED]
    assert len(alone) == len(set(alone)), "a domain that is not listed belongs to one device"
    assert all(len(own - SHARED.keys()) <= 1 for own in names.values())
