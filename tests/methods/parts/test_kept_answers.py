"""Tests that a server half keeps the newest answer of each device, and in the order of names."""

import torch

from protofleet.methods.contract.base import Reply
from protofleet.methods.parts.kept_answers import KeptAnswers
from protofleet.methods.parts.state import snapshot
from tests.methods.tiny import same


def reply(device, value, rows=2):
    return Reply(
        device, 10 * value, {"means": torch.full((rows, 3), float(value)), "n": torch.tensor([value])}
    )


def kept(*replies):
    answers = KeptAnswers()
    for one in replies:
        answers.keep([one])
    return answers


def test_a_new_answer_of_a_device_replaces_its_earlier_answer():
    answers = kept(reply("b", 1), reply("a", 2), reply("b", 3))
    found = [(one.device, one.examples, int(one.payload["n"])) for one in answers.replies()]
    assert found == [("a", 20, 2), ("b", 30, 3)]


def test_a_kept_answer_is_a_copy_of_the_reply():
    one = reply("a", 1)
    answers = kept(one)
    one.payload["n"].fill_(9)
    assert int(answers.replies()[0].payload["n"]) == 1


def test_a_restored_state_has_the_answers_of_all_devices_in_the_order_of_names():
    answers = kept(*(reply(f"d{i}", i, rows=i % 3) for i in (11, 2, 10, 0)))
    again = kept(reply("gone", 5))
    again.restore(snapshot(answers.state()))
    assert [one.device for one in again.replies()] == ["d0", "d10", "d11", "d2"]
    assert [one.examples for one in again.replies()] == [0, 100, 110, 20]
    for one, other in zip(again.replies(), answers.replies(), strict=True):
        assert same(one.payload, other.payload)
    assert same(again.state(), answers.state())


def test_dropping_a_device_removes_its_answer():
    answers = kept(reply("a", 1), reply("b", 2))
    answers.drop("a")
    answers.drop("nobody")
    assert same(answers.state(), kept(reply("b", 2)).state())


def test_a_state_without_answers_can_be_restored():
    again = kept(reply("a", 1))
    again.restore(snapshot(KeptAnswers().state()))
    assert again.replies() == []
