"""Processes authenticate by their enrolment, and an enrolment can end during a run."""

import time
from dataclasses import replace

import pytest

from protofleet.federation.enrol.key_folder import install, make_request, read_approval_file
from protofleet.federation.enrol.lifecycle import approve, renew, review_request, revoke
from protofleet.federation.enrol.local_federation import enrol, enrol_federation
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.enrolment import LOOK_SECONDS, KnownRecords, load_trust
from protofleet.protocol.security.keys import Identity, has_ended
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.messages import Hello
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Rejected
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime import credentials
from tests.support.small_federation import POLICY, simulation


@pytest.fixture
def fleet(tmp_path):
    return enrol_federation(tmp_path / "fleet", "lab", ["a", "b"])


def of_coordinator(fleet, federation="lab"):
    records = fleet.root / "records"
    return credentials.of_coordinator(str(fleet.folder_of(COORDINATOR)), federation, "", str(records))


def of_device(fleet, name, federation="lab"):
    return credentials.of_device(str(fleet.folder_of(name)), federation, name, "", "")


def test_the_coordinator_knows_all_devices_and_a_device_knows_only_the_coordinator(fleet):
    keys, ring = of_coordinator(fleet)
    for name in "ab":
        own, known = of_device(fleet, name)
        public = own.public
        assert (ring[name].sign, ring[name].receive) == (public.sign, public.receive)
        assert (known[COORDINATOR].sign, known[COORDINATOR].receive) == (
            keys.public.sign,
            keys.public.receive,
        )
        assert list(known) == [COORDINATOR]
    assert sorted(ring) == ["a", "b"] and "c" not in ring and COORDINATOR not in ring


def test_an_enrolment_for_another_name_or_federation_is_refused_with_the_reason(fleet):
    with pytest.raises(
        SettingsError, match=r"holds the enrolment of a in lab, but the settings are for a in sea"
    ):
        of_device(fleet, "a", "sea")
    with pytest.raises(SettingsError, match=r"the enrolment of b in lab, but the settings are for a in lab"):
        credentials.of_device(str(fleet.folder_of("b")), "lab", "a", "", "")


def test_a_folder_without_an_enrolment_is_refused_with_a_fix(tmp_path):
    with pytest.raises(SettingsError, match=r"gone holds no enrolment; `protofleet enrol install`"):
        credentials.of_device(str(tmp_path / "gone"), "lab", "a", "", "")


def test_a_device_enrolled_during_a_run_is_known_at_once(fleet):
    _, ring = of_coordinator(fleet)
    assert "c" not in ring
    enrol(fleet.authority(), fleet.folder_of("c"), "c", 30.0)
    assert "c" in ring


def test_an_installed_revocation_applies_to_a_running_coordinator_within_a_second(fleet, tmp_path):
    """This holds even if the file of the record is still there, because only the list counts."""
    kept = tmp_path / "records"
    kept.mkdir()
    for name in "ab":
        (kept / f"{name}.record").write_bytes((fleet.root / "records" / f"{name}.record").read_bytes())
    folder = fleet.folder_of(COORDINATOR)
    now = [time.time()]
    ring = KnownRecords(kept, load_trust(folder / "current"), clock=lambda: now[0], follow=folder)
    assert "a" in ring and "b" in ring
    authority = fleet.authority()
    revoke(authority, "a", "stolen")
    now[0] += LOOK_SECONDS
    assert "a" in ring, "nothing has been installed yet"
    approval = read_approval_file(fleet.root / "approvals" / f"{COORDINATOR}.approval")
    install(folder, approval, lambda seen: False, authority.now(), durable=False)
    now[0] += LOOK_SECONDS
    assert "a" not in ring and "b" in ring


@pytest.mark.parametrize("new_keys", [True, False])
def test_a_new_enrolment_after_a_revocation_ends_the_earlier_one_but_a_renewal_does_not(fleet, new_keys):
    folder, now = fleet.folder_of(COORDINATOR), [time.time()]
    ring = KnownRecords(
        fleet.root / "records", load_trust(folder / "current"), clock=lambda: now[0], follow=folder
    )
    first = ring["a"].holder
    renewed(fleet, "a")
    now[0] += LOOK_SECONDS
    renewal = ring["a"].holder
    assert renewal != first and not has_ended(ring, "a", first) and not has_ended(ring, "a", "")
    enrolled_anew(fleet, "a", new_keys)
    approval = read_approval_file(fleet.root / "approvals" / f"{COORDINATOR}.approval")
    install(folder, approval, lambda seen: False, fleet.authority().now(), durable=False)
    now[0] += LOOK_SECONDS
    assert has_ended(ring, "a", first) and has_ended(ring, "a", renewal)
    assert not has_ended(ring, "a", ring["a"].holder)


class Silence:
    """A transport that must not be used."""

    def publish(self, topic, frame, retain=False, qos=1):
        raise AssertionError(f"nothing is to be said on {topic}")


def renewed(fleet, name):
    return renew(fleet.authority(), name)


def enrolled_anew(fleet, name, new_keys=True):
    authority = fleet.authority()
    revoke(authority, name, "stolen")
    _, data = make_request(
        fleet.folder_of(name), authority.federation, name, (), new_keys=new_keys, durable=False
    )
    return approve(authority, review_request(authority, data, name))


@pytest.mark.parametrize("again", [renewed, enrolled_anew])
def test_a_hello_with_a_new_record_is_not_rejected_by_the_boot_of_the_old_record(fleet, again):
    """A rejected hello would end a device whose boot numbers came from a wrong clock."""
    folder, now = fleet.folder_of(COORDINATOR), time.time()  # this clock does not advance
    ring = KnownRecords(
        fleet.root / "records", load_trust(folder / "current"), clock=lambda: now, follow=folder
    )
    me, topics = Identity(COORDINATOR, 7, of_coordinator(fleet)[0]), Topics("lab")
    link = CoordinatorLink(me, ring, topics, Silence(), clock=Clock(lambda: now))

    def receive_hello():
        own, known = of_device(fleet, "a")
        device = DeviceLink(Identity("a", int(now), own), known, topics, Silence(), None)
        return link.open(topics.up("a"), device.seal(Hello("a", 5, 5), COORDINATOR))

    link.remember({"a": (int(now) + 365 * 86_400, 3, ring["a"].holder)})  # its clock was wrong
    with pytest.raises(Rejected, match="stale_boot"):
        receive_hello()
    install(
        fleet.folder_of("a"), again(fleet, "a"), lambda seen: True, fleet.authority().now(), durable=False
    )
    assert receive_hello() is not None


@pytest.mark.parametrize("method", ["fedavg", "fedpall"])
def test_a_device_whose_enrolment_ends_is_in_no_later_cohort_and_the_run_continues(tmp_path, method):
    run = simulation(tmp_path, method, policy=replace(POLICY, quorum=2))
    run.run(until=lambda: run.service.run.machine.round == 2)
    del run.keyring["device-2"]
    run.run()
    assert run.service.finished and not run.service.stopped
    assert (
        list(run.service.run.machine.cohort) == ["device-0", "device-1"]
        and "device-2" not in run.service.run.machine.roster
    )
