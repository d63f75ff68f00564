"""A device believes nothing delivered until it has the receipt: a PUBACK is none."""

import numpy as np

from protofleet.edge_client.conversation.answer_delivery import LONGEST_RESEND_SECONDS, PendingAnswer
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import Answer
from tests.support.small_federation import assert_same, simulation


def test_an_answer_is_said_again_ever_more_rarely():
    pending, now, pauses = PendingAnswer(Answer("", 1, "train", "", "", 5, {}), 0.0), 0.0, []
    for _ in range(7):
        pending.sent(now)
        pauses.append(pending.resend_at - now)
        now = pending.resend_at
    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, LONGEST_RESEND_SECONDS]


def test_an_answer_that_the_broker_took_and_lost_is_said_again_before_anybody_asks(tmp_path):
    """The next hello would bring the task again, 15 s after the last word that was heard; this is sooner."""
    honest = simulation(tmp_path / "honest", "fedavg").run()
    run = simulation(tmp_path / "lossy", "fedavg")
    publish, said = run.broker.publish, []

    def losing(topic, frame, retain):
        kind = run.agents["device-1"].link.kind_of(frame)
        if topic.endswith("up/device-1") and kind in ("update", "hello"):
            said.append((kind, run.world.now))
            if kind == "update" and sum(k == "update" for k, _ in said) == 1:
                return
        publish(topic, frame, retain)

    run.broker.publish = losing
    run.run()
    first = next(i for i, (kind, _) in enumerate(said) if kind == "update")
    kind, again = said[first + 1]
    assert kind == "update" and again - said[first][1] == 5.0
    assert_same(honest, run)


def test_a_question_that_comes_again_finds_its_answer_also_after_a_reboot(tmp_path):
    question, other = "12" * 32, "34" * 32
    state = DeviceState(tmp_path, durable=False)
    state.begin("spring", "ab" * 32)
    answer = Answer(question, 1, "train", "ab" * 32, state.store.put({"w": np.ones(3)}).object.hex(), 5, {})
    state.remember(answer, {})
    for known in (state, DeviceState(tmp_path, durable=False)):
        assert known.answer_to(question) == answer and known.answer_to(other) is None
