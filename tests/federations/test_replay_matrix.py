"""Every way in which an answer or a task can come from another round, run, epoch, boot, number or base.

The frames are signed with the real keys. A broker could replay them if its owner had taken part in every
other round, run and process of the parties.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from protofleet.protocol.security.envelope import SEALED, read_header, seal, unseal
from protofleet.protocol.transport.base import Arrived
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Reason
from tests.support.small_federation import assert_same, simulation

DEVICE = "device-1"
SAME, EARLIER, LATER = 0, -1, 1


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return simulation(tmp_path_factory.mktemp("honest"), "fedavg").run()


class Held:
    """A run that waits: one frame has been sent, and has not arrived."""

    def __init__(self, folder, kind, round=2):
        self.round = round
        self.run = run = simulation(folder, "fedavg")
        self.kind, self.bases, self.topic, self.frame = kind, {}, "", b""
        self.end = DEVICE if kind == "task" else COORDINATOR
        self._publish, run.broker.publish = run.broker.publish, self.publish
        run.run(until=lambda: bool(self.frame))
        self.header, self.payload = unseal(self.frame, run.keyring, run.keys[self.end].receive)
        self.number = itertools.count(self.header.sequence + 100)
        party = run.service if self.end == COORDINATOR else run.agents[self.end]
        self.link = party.link
        self.part = self.run.service.run.link if self.end == COORDINATOR else party.link
        self.seen = self.link.last_heard(self.header.sender)[1]

    def publish(self, topic, frame, retain):
        if frame[:3] == b"PF\x01":
            header = read_header(frame)[0]
            if header.kind in ("task", "update"):
                if self.frame and header.kind == self.kind and DEVICE in topic:
                    return  # A repeat of the frame does not come through either.
                if header.kind == "update":
                    self.bases[header.round] = header.base
                if (header.kind, header.round) == (self.kind, self.round) and DEVICE in topic:
                    self.topic, self.frame = topic, frame
                    return
        self._publish(topic, frame, retain)

    def bring(self, fresh=True, **header):
        """Deliver this frame with another header, and return the changes of the counters."""
        header.setdefault("sequence", next(self.number) if fresh else self.seen)
        made = replace(self.header, **header)
        assert made.suite == SEALED
        frame = seal(made, self.payload, self.run.keys[made.sender].sign, self.run.keyring[self.end].receive)
        if self.end == COORDINATOR:
            self.link.rate_limiter.frame_was_useful(DEVICE)  # Otherwise it would soon count as a flood.
        before = self.part.meter.snapshot()
        self.run.broker.clients[self.end].deliver(Arrived(self.topic, frame))
        after = self.part.meter.since(before)
        came = {result: n for (_, _, result), n in after.messages.items() if result != "sent"}
        return came, dict(after.rejected)

    def let_through(self):
        self.run.broker.publish = self._publish
        return self.run


def judged(came, rejected):
    """Return the one result of a frame, or the reason for which its answer was refused."""
    assert sum(came.values()) == 1, "each frame ends in one counter"
    (result,) = came
    return next(iter(rejected)).value if rejected else result


def crossed(held):
    h = held.header
    return itertools.product(
        [h.round + d for d in (EARLIER, SAME, LATER)],
        [h.run, "another"],
        [h.epoch + d for d in (EARLIER, SAME, LATER)],
        [h.boot + d for d in (EARLIER, SAME, LATER)],
        [False, True],  # True stands for a number that has not been seen.
    )


def test_only_the_update_with_the_right_header_is_accepted_and_only_once(tmp_path, honest):
    held = Held(tmp_path, "update")
    h, spool, service = held.header, held.run.service.run.spool, held.run.service
    bases = [h.base, held.bases[1], bytes(32)]
    cases = [(*case, base) for case in crossed(held) for base in bases]
    right = [
        c for c in cases if (c[0], c[1], c[4], c[5]) == (h.round, h.run, True, h.base) and c[3] >= h.boot
    ]
    assert len(set(cases)) == 324 and len(right) == 6

    def verdict(case):
        round, run, epoch, boot, fresh, base = case
        return judged(*held.bring(fresh, round=round, run=run, epoch=epoch, boot=boot, base=base))

    def expected(case, heard):
        round, run, _, boot, fresh, base = case
        if boot < heard:
            return Reason.STALE_BOOT.value
        if not fresh:
            return "duplicate"
        if run != h.run:
            return "accepted"  # The coordinator reads it, and does nothing.
        other = (round, base) == (1, bases[1])  # The task of round 1 has had another answer.
        return Reason.EQUIVOCATION.value if other else Reason.LATE.value

    for heard in (h.boot, h.boot + 1):  # A newer boot ends the older one.
        held.bring(False, run="another", boot=heard)  # From now on its number has been seen.
        for case in cases:
            if case[3] <= heard and (case not in right or case[3] < heard):
                assert verdict(case) == expected(case, heard), case
        assert DEVICE not in service.run.machine.answered and DEVICE not in spool.answers(2, "train")
    assert [verdict(case) for case in right if case[3] > h.boot] == ["accepted"] * 3
    assert sorted(spool.answers(2, "train")).count(DEVICE) == 1 and DEVICE in service.run.machine.answered
    run = held.let_through()
    run.kill(DEVICE)
    run.boot_device(DEVICE)
    assert_same(honest, run.run())


def test_only_the_task_with_the_right_header_is_accepted_and_only_once(tmp_path, honest):
    """The task of round 2, which the device answered last, may be sent again under a new number.

    The device would repeat its answer.
    """
    held = Held(tmp_path, "task", round=3)
    h, agent = held.header, held.run.agents[DEVICE]
    cases = [
        (round, run, h.epoch + epoch, h.boot + boot, fresh, recipient)
        for round, run, epoch, boot, fresh, recipient in itertools.product(
            (1, 2, 3),
            (h.run, "another"),
            (EARLIER, SAME),
            (EARLIER, SAME),
            (False, True),
            (DEVICE, "device-0"),
        )
        if (round, fresh) != (2, True)
    ]
    right = (h.round, h.run, h.epoch, h.boot, True, DEVICE)
    assert len(set(cases)) == 80 and right in cases

    def verdict(case):
        round, run, epoch, boot, fresh, recipient = case
        return judged(*held.bring(fresh, round=round, run=run, epoch=epoch, boot=boot, recipient=recipient))

    def expected(round, run, epoch, boot, fresh, recipient):
        if recipient != DEVICE:
            return Reason.WRONG_RECIPIENT.value
        if epoch < h.epoch:
            return Reason.STALE_EPOCH.value
        if round < 2:
            return Reason.STALE_ROUND.value
        return Reason.STALE_BOOT.value if boot < h.boot else "duplicate"

    for case in cases:
        of_a_later_coordinator = case[1] != h.run and case[2:4] == (h.epoch, h.boot) and case[4]
        if case != right and not of_a_later_coordinator:
            assert verdict(case) == expected(*case), case
    assert not (agent.view.working or agent.link.fetching) and agent.state.last_round == 2
    agent.link.run = h.run
    assert verdict(right) == "accepted" and agent.link.fetching
    assert_same(honest, held.let_through().run())
