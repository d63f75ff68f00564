"""Buffered rounds over a real broker: a device that is slow with its first task."""

import threading
from dataclasses import replace

from protofleet.coordinator.round.events import Accept, Close
from tests.support.federation_over_broker import DEVICES, Federation
from tests.support.small_federation import POLICY, plan

FAST, OTHER, SLOW = DEVICES
LIMIT_SECONDS = 60.0  # A wait this long means that the test has failed.


class Buffered(Federation):
    """The slow device works on its first task until round 2 has ended.

    From round 3 on, another device waits until round 3 has ended, so that round 3 needs the late update.
    """

    policy = replace(POLICY, rounds=4, mode="buffered", buffer=2, quorum=1, cohort=0, gather=3)

    def __init__(self, folder, address, federation):
        super().__init__(folder, address, federation, "fedavg")
        self.plan = plan("fedavg", self.policy.rounds)
        self.two_rounds_ended, self.third_ended = threading.Event(), threading.Event()
        self.commands = []

    def coordinator(self):
        made = super().coordinator()
        self.service.run.observers.append(self)
        return made

    def device(self, name, i):
        agent, inbox = super().device(name, i)
        runner = agent.tasks.runner
        work = runner.answer

        def answer(job, question, run):
            if question.phase == "train" and name == SLOW:
                assert self.two_rounds_ended.wait(LIMIT_SECONDS)
            if question.phase == "train" and name == OTHER and question.round > 2:
                assert self.third_ended.wait(LIMIT_SECONDS)
            return work(job, question, run)

        runner.answer = answer
        return agent, inbox

    def happened(self, run, event, commands, now):
        self.commands += commands
        for command in commands:
            match command:
                case Close(2, "train", _):
                    self.two_rounds_ended.set()
                case Close(3, "train", _):
                    self.third_ended.set()

    def answered(self, run, update, now):
        """Do nothing."""

    def stepped(self, run, step, now):
        """Do nothing."""


def test_a_late_update_counts_in_the_round_that_is_open_when_it_arrives(tmp_path, broker, federation):
    made = Buffered(tmp_path, broker.address, federation)
    try:
        made.run()
    finally:
        made.close()
    assert made.service.finished
    closed = {one.round: one.devices for one in made.commands if isinstance(one, Close)}
    assert closed[1] == closed[2] == (FAST, OTHER)
    assert closed[3] == (FAST, SLOW) and Accept(SLOW, 1, "train", 2) in made.commands
    assert made.agents[SLOW].tasks.delivery.receipts["accepted"] >= 2
