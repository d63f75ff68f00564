"""A broker that works against its federation: it reads, drops, alters, misplaces, brings back, holds up, forges.

What it can do is make a run take longer. The result is the honest one to the bit, lies have their counters, and it
has read no tensor.
"""

import random
from collections import Counter

import numpy as np
import pytest

from protocol.reasons import Reason
from tests.worlds import assert_same, final_state, simulation


class Malice:
    """In the place of a simulated broker's `publish`; one seed, one history."""

    def __init__(self, run, seed):
        self.run, self.dice, self.honest = run, random.Random(seed), run.broker.publish
        self.seen, self.done = [], Counter()
        self.deeds = (
            [self.drop, self.alter, self.misplace, self.bring_back, self.hold_up, self.forge] if seed else []
        )
        run.broker.publish = self.publish

    def publish(self, topic, frame, retain):
        self.seen.append((topic, frame))
        if self.deeds and self.dice.random() < 0.4:
            deed = self.dice.choice(self.deeds)
            self.done[deed.__name__] += 1
            deed(topic, frame, retain)
        else:
            self.honest(topic, frame, retain)

    def drop(self, topic, frame, retain):
        pass

    def alter(self, topic, frame, retain):
        changed = bytearray(frame)
        changed[self.dice.randrange(3, len(frame))] ^= 1 << self.dice.randrange(8)
        self.honest(topic, bytes(changed), retain)

    def misplace(self, topic, frame, retain):
        self.honest(self.dice.choice(self.seen)[0], frame, False)

    def bring_back(self, topic, frame, retain):
        self.honest(topic, frame, retain)
        for _ in range(3):
            self.honest(*self.dice.choice(self.seen), False)

    def hold_up(self, topic, frame, retain):
        later = self.run.world.now + 20 * self.dice.random()
        self.run.world.at(later, lambda: self.honest(topic, frame, retain))

    def forge(self, topic, frame, retain):
        """Another's header, a payload of its own, a signature that is none."""
        other = self.dice.choice(self.seen)[1]
        self.honest(topic, other[: len(other) // 2] + self.dice.randbytes(len(other) // 2 + 64), retain)
        self.honest(topic, frame, retain)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    runs = {}

    def of(method):
        if method not in runs:
            runs[method] = simulation(tmp_path_factory.mktemp(method), method).run()
        return runs[method]

    return of


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("method", ["fedavg", "fedpall", "fedplcc"])
def test_a_run_over_a_hostile_broker_ends_with_the_honest_bits(tmp_path, honest, method, seed):
    run = simulation(tmp_path, method)
    malice = Malice(run, seed)
    run.run()
    assert run.service.finished and set(malice.done) == {deed.__name__ for deed in malice.deeds}
    assert_same(honest(method), run)
    found = Counter()
    for meter in run.meters.values():
        found += meter.rejected
    assert found[Reason.BAD_SIGNATURE] and found[Reason.WRONG_TOPIC], found


@pytest.mark.parametrize("sealed", [True, False])
def test_it_reads_what_is_not_sealed_and_no_piece_of_what_is(tmp_path, sealed):
    run = simulation(tmp_path, "fedavg")
    for link in (run.service.link, *(agent.link for agent in run.agents.values())):
        link.sealed = sealed
    malice = Malice(run, 0)
    run.run()
    assert run.service.finished
    seen = b"".join(frame for _, frame in malice.seen)
    windows = {seen[i : i + 12] for i in range(len(seen) - 11)}
    learned = [v.numpy() for k, v in final_state(run).items() if k.startswith("server/") and v.numel() > 8]
    pieces = [np.ascontiguousarray(v).tobytes()[i : i + 12] for v in learned for i in range(0, 24, 4)]
    assert len(pieces) >= 12 and [piece in windows for piece in pieces] == [not sealed] * len(pieces)
    assert (b"weights" in seen) == (b"accuracy" in seen) == (not sealed), "names and metrics are sealed too"
