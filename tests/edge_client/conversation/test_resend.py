"""A device treats an update as delivered only after its receipt; a PUBACK is not enough."""

import numpy as np

from protofleet.edge_client.conversation.answer_delivery import LONGEST_RESEND_SECONDS, PendingAnswer
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import Answer
from protofleet.protocol.link.base import kind_counted, unverified_header
from protofleet.protocol.wire.messages import Receipt
from tests.edge_client.agent_parts import AgentParts
from tests.support.small_federation import assert_same, simulation


def test_an_update_without_a_receipt_is_sent_again_at_growing_intervals():
    pending, now, pauses = PendingAnswer(Answer("", 1, "train", "", "", 5, {}), 0.0), 0.0, []
    for _ in range(7):
        pending.sent(now)
        pauses.append(pending.resend_at - now)
        now = pending.resend_at
    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, LONGEST_RESEND_SECONDS]


def test_the_resend_time_after_a_late_receipt_is_four_times_the_delay_of_the_receipt(tmp_path):
    parts, answer = AgentParts(tmp_path), Answer("", 1, "train", "", "", 5, {})
    for seconds, pause in ((0.1, 5.0), (8.0, 5.0), (1.0, 32.0), (20.0, 5.0), (0.1, LONGEST_RESEND_SECONDS)):
        parts.tasks.delivery.start(answer, 100.0)
        parts.tasks.delivery.send(plan_is_known=True, now=100.0)
        assert parts.tasks.delivery.wake_at == 100.0 + pause
        parts.tasks.delivery.received(Receipt(1, "train", "accepted"), 100.0 + seconds)


def test_an_update_that_the_broker_loses_is_sent_again_before_the_next_hello(tmp_path):
    """The next hello, 15 s after the last received message, would get the task again. The resend is sooner."""
    honest = simulation(tmp_path / "honest", "fedavg").run()
    run = simulation(tmp_path / "lossy", "fedavg")
    publish, said = run.broker.publish, []

    def losing(topic, frame, retain):
        kind = kind_counted(unverified_header(frame))
        if topic.endswith("up/device-1") and kind in ("update", "hello"):
            said.append((kind, run.clock.now))
            if kind == "update" and sum(k == "update" for k, _ in said) == 1:
                return
        publish(topic, frame, retain)

    run.broker.publish = losing
    run.run()
    first = next(i for i, (kind, _) in enumerate(said) if kind == "update")
    kind, again = said[first + 1]
    assert kind == "update" and again - said[first][1] == 5.0
    assert_same(honest, run)


def test_a_repeated_task_gets_the_stored_update_also_after_a_reboot(tmp_path):
    question, other = "12" * 32, "34" * 32
    state = DeviceState(tmp_path, durable=False)
    state.begin("spring", "ab" * 32)
    answer = Answer(question, 1, "train", "ab" * 32, state.store.put({"w": np.ones(3)}).object.hex(), 5, {})
    state.save_answer(answer, {})
    for known in (state, DeviceState(tmp_path, durable=False)):
        assert known.answer_to(question) == answer and known.answer_to(other) is None
