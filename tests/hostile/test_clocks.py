"""Wrong clocks, and numbers that only a wrong clock or a thief sends, exclude no device permanently."""

import time

from protofleet.coordinator.round.policy import Policy
from protofleet.federation.enrol.authority import Authority
from protofleet.federation.enrol.key_folder import install, make_request, read_approval_file
from protofleet.federation.enrol.lifecycle import approve, reissue_approvals, renew, review_request, revoke
from protofleet.protocol.wire.names import COORDINATOR
from tests.hostile.device import Device, honest
from tests.hostile.federation import Federation
from tests.hostile.test_other_runs import held_in

DAY = 86_400.0
ALONE = Policy(quorum=1, gather=1, settle_seconds=0.2)
UNBOUNDED = "import protofleet.protocol.link.clocks as clocks; clocks.Clock.ahead = lambda self, number: 0.0"


class Dial:
    """The number of seconds by which a process's clock is ahead; a test can change it meanwhile."""

    def __init__(self, path, ahead):
        self._path = path
        self.turn(ahead)
        self.planted = (
            f"import time; right = time.time; time.time = lambda: right() + float(open({str(path)!r}).read())"
        )

    def turn(self, ahead):
        fresh = self._path.with_suffix(".new")
        fresh.write_text(str(ahead))
        fresh.replace(self._path)


def installed(f, name, approval):
    authority = f.fleet.authority()
    install(f.fleet.folder_of(name), approval, lambda seen: True, authority.now(), durable=False)


def renewed(f, name):
    installed(f, name, renew(f.fleet.authority(), name))


def enrolled_anew(f, name):
    """Revoke a device whose key was stolen, and enrol it again with new keys."""
    authority = f.fleet.authority()
    revoke(authority, name, "stolen")
    _, data = make_request(
        f.fleet.folder_of(name), authority.federation, name, (), new_keys=True, durable=False
    )
    installed(f, name, approve(authority, review_request(authority, data, name)))
    reissue_approvals(authority, COORDINATOR)
    installed(f, COORDINATOR, read_approval_file(authority.folder / "approvals" / f"{COORDINATOR}.approval"))


def rejected(f, reason):
    return f.metrics().get(f'protofleet_rejected_total{{reason="{reason}"}}', 0.0)


def test_a_thief_with_the_highest_boot_is_rejected_with_a_reason(tmp_path):
    with Federation(tmp_path, "one", policy=ALONE, rounds=1) as f:
        coordinator = f.coordinator()
        with Device(f.credentials("one"), boot=(1 << 63) - 1) as thief:
            words = thief.wait("refusal").fields["reason"]
            assert "days ahead" in words and "enrol renew one" in words, words
            assert rejected(f, "boot_ahead") and not thief.plan
        one = f.device("one")
        assert f.wait_for_end(coordinator) == 0 and f.wait_for_end(one) == 0, f.last_words()


def test_a_revoked_key_whose_answer_was_accepted_does_not_block_the_device_with_new_keys(tmp_path):
    """The thief uses a boot that is still plausible.

    A coordinator accepts an answer with it, and is killed and started again later.
    """
    with Federation(tmp_path, "one", policy=ALONE, rounds=3) as f:
        first = f.coordinator()
        with Device(
            f.credentials("one"), lambda task: honest(task) if task.round == 1 else None,
            boot=int(time.time() + 0.9 * DAY),
        ) as thief:  # fmt: skip
            thief.wait("task", lambda heard: heard.header["round"] == 2)
        enrolled_anew(f, "one")
        (one,), held = held_in(f, 3, "one")
        f.wait_until(held, "the third round; the second one has its own answer")
        first.kill()
        again = f.coordinator()
        (f.folder / "go").touch()
        assert f.wait_for_end(again) == 0 and f.wait_for_end(one) == 0, f.last_words()
        assert [line["participants"] for line in f.rounds()] == [["one"]] * 4


def test_a_device_whose_clock_was_ahead_returns_after_a_renewal(tmp_path):
    with Federation(tmp_path, "one", policy=ALONE, rounds=1) as f:
        coordinator = f.coordinator()
        for ahead in (10 * DAY, 0.0):  # Its count is still ahead when its clock is right again.
            one = f.device("one", ahead=ahead)
            assert f.wait_for_end(one) == 1
            assert "enrol renew one" in f.log_of(one) and "Traceback" not in f.log_of(one)
        renewed(f, "one")
        one = f.device("one")
        assert f.wait_for_end(one) == 0 and f.wait_for_end(coordinator) == 0, f.last_words()


def test_a_device_ignores_an_epoch_far_ahead_and_works_for_the_next_coordinator(tmp_path):
    """The operator set the coordinator's clock right and uses another folder, which lacks that epoch."""
    with Federation(tmp_path, "one", policy=ALONE, rounds=1) as f:
        wrong = f.coordinator(ahead=35 * DAY, name="spring")
        one = f.device("one")
        f.wait_until(lambda: "epoch_ahead" in f.log_of(one), "the device to see it")
        assert "35.0 days ahead of this device's clock" in f.log_of(one)
        wrong.kill()
        right = f.coordinator(name="summer", folder=str(tmp_path / "elsewhere"))
        assert f.wait_for_end(right) == 0 and f.wait_for_end(one) == 0, f.last_words()


def test_a_device_that_stored_an_epoch_far_ahead_forgets_it_at_its_start(tmp_path):
    """A version without the check took the epoch over.

    The same folder has the epoch too.
    """
    with Federation(tmp_path, "one", policy=ALONE, rounds=1) as f:
        spring = f.coordinator(ahead=35 * DAY, name="spring")
        before = f.device("one", planted=UNBOUNDED)
        assert f.wait_for_end(spring) == 0 and f.wait_for_end(before) == 0, f.last_words()
        one = f.device("one")
        summer = f.coordinator(name="summer")
        assert f.wait_for_end(summer) == 0 and f.wait_for_end(one) == 0, f.last_words()
        assert "ahead of this clock" in f.log_of(one) and "is forgotten" in f.log_of(one)
        assert "the new epoch is taken from this clock" in f.log_of(summer)


def test_a_run_that_began_under_a_fast_clock_continues_under_the_correct_clock(tmp_path):
    with Federation(tmp_path, "one", policy=ALONE, rounds=2) as f:
        wrong = f.coordinator(ahead=35 * DAY)
        (before,), held = held_in(f, 2, "one", planted=UNBOUNDED)
        f.wait_until(held, "the second round")
        wrong.kill()
        before.kill()
        right, one = f.coordinator(), f.device("one")
        assert f.wait_for_end(right) == 0 and f.wait_for_end(one) == 0, f.last_words()
        assert [line["round"] for line in f.rounds()] == [1, 2, 3]


def test_a_device_forgets_an_epoch_far_ahead_when_its_clock_is_corrected(tmp_path, monkeypatch):
    monkeypatch.setattr(Authority, "now", lambda self: int(time.time() - 5 * DAY))  # Makes the records older.
    clock = Dial(tmp_path / "clock", 0.0)
    with Federation(tmp_path, "one", policy=ALONE) as f:
        spring, one = f.coordinator(name="spring", rounds=1), f.device("one")
        assert f.wait_for_end(spring) == 0 and f.wait_for_end(one) == 0, f.last_words()
        clock.turn(
            -2 * DAY
        )  # A party whose clock is behind its own earlier numbers does not check the numbers of others.
        f.settings |= {"name": "summer", "rounds": 4}
        wrong = f.coordinator(ahead=35 * DAY)
        (one,), held = held_in(f, 2, "one", planted=clock.planted)
        f.wait_until(held, "the second round")
        clock.turn(0.0)
        wrong.kill()
        right = f.coordinator()
        (f.folder / "go").touch()
        assert f.wait_for_end(right) == 0 and f.wait_for_end(one) == 0, f.last_words()
        assert "is forgotten" in f.log_of(one) and "which was corrected" in f.log_of(one)


def test_a_device_whose_clock_was_ahead_reports_that_a_renewal_removes_the_epoch(tmp_path):
    clock = Dial(tmp_path / "clock", 35 * DAY)
    with Federation(tmp_path, "one", policy=ALONE, rounds=4) as f:
        wrong = f.coordinator(ahead=35 * DAY)
        (one,), held = held_in(f, 2, "one", planted=clock.planted)
        f.wait_until(held, "the second round")
        clock.turn(0.0)
        wrong.kill()
        right = f.coordinator()
        (f.folder / "go").touch()
        f.wait_until(lambda: "enrol renew one" in f.log_of(one), "the device to say it")
        assert "35.0 days ahead of this device's clock" in f.log_of(one)
        one.say(15)
        f.wait_for_end(one)
        renewed(f, "one")
        one = f.device("one")
        assert f.wait_for_end(right) == 0 and f.wait_for_end(one) == 0, f.last_words()


def test_one_of_two_coordinators_that_start_in_the_same_second_ends_and_names_the_other(tmp_path):
    frozen = f"import time; time.time = lambda: {int(time.time())}.5"
    with Federation(tmp_path, "one", policy=ALONE, rounds=2) as f:
        # None of them looks whether another one leads, like the coordinators of earlier releases.
        pair = [
            f.coordinator(planted=frozen, folder=str(tmp_path / name), options=["--own-broker"])
            for name in ("first", "second")
        ]
        f.wait_until(lambda: any(p.child.poll() is not None for p in pair), "one of them to end")
        (ended,) = (p for p in pair if p.child.poll() is not None)
        (other,) = (p for p in pair if p is not ended)
        words = f.log_of(ended)
        assert f"pid {other.child.pid} " in words and "started in the same second" in words, words
        f.raw("one")
        assert f.wait_for_end(other) == 0, other.last_word()
