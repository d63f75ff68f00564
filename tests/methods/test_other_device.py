"""Tests of every method with model and data on another device than the CPU; the results must be equal bit by bit."""

import pytest
import torch

from protofleet.methods.contract.base import Ask, Reply
from protofleet.methods.parts.state import snapshot
from tests.methods.other_device import There, other_device
from tests.methods.test_papers import every_method, halves
from tests.methods.tiny import Shard, member, play, same, tiny, with_public_set


def moved(payload, place):
    return {name: value.to(place) for name, value in payload.items()}


def halves_there(module, server, clients, place):
    there = tiny(norm=True).to(place)
    others = {
        name: with_public_set(
            type(client)(
                tiny(norm=True).to(place),
                Shard(client.data.x.to(place), client.data.y.to(place)),
                client.hyper,
                7,
                name,
            )
        )
        for name, client in clients.items()
    }
    return with_public_set(type(server)(there, server.hyper, 7)), others


def play_there(server, clients, number, place):
    """Play a round as `play` does, but send all values through the CPU and move them to the device of the half."""
    server.begin(number, [member(name, client) for name, client in sorted(clients.items())])
    story = server.round()
    ask = next(story)
    while True:
        down, replies = moved(snapshot(ask.payload), "cpu"), []
        for name, client in sorted(clients.items()):
            client.begin(number)
            client.receive(moved(down, place))
            sent = client.run(Ask(ask.phase, moved(down, place)))
            replies.append(Reply(name, len(client.data.y), moved(moved(snapshot(sent), "cpu"), place)))
        try:
            ask = story.send(replies)
        except StopIteration:
            return


@pytest.mark.slow
@every_method
def test_each_method_computes_the_same_bits_on_another_device(module):
    server, clients = halves(module, norm=True)
    with other_device() as place:
        other, others = halves_there(module, server, clients, place)
        for number in (1, 2):
            play(server, clients, number)
            play_there(other, others, number, place)
        again, _ = halves_there(module, server, clients, place)
        again.restore(moved(moved(other.state(), "cpu"), place))
        assert same(moved(again.payload(), "cpu"), moved(server.payload(), "cpu"))
        for name, client in clients.items():
            late = others[name]
            client.receive(snapshot(server.payload()))
            late.receive(moved(snapshot(server.payload()), place))
            for half in (client, late):
                half.begin(3)
                half.after_last_round()
                half.model.eval()
            with torch.no_grad():
                for found, expected in (
                    (late.predict(late.data.x), client.predict(client.data.x)),
                    (late.embedding(late.data.x), client.embedding(client.data.x)),
                ):
                    assert isinstance(found, There) and torch.equal(found.cpu(), expected)
                assert late.other_rules().keys() == client.other_rules().keys()
                for view, rule in late.other_rules().items():
                    own = client.scores(client.data.x, client.other_rules()[view])
                    assert torch.equal(late.scores(late.data.x, rule).cpu(), own)
            assert same(moved(late.state(), "cpu"), client.state())
    assert same(moved(other.state(), "cpu"), server.state())


def test_an_operation_with_tensors_on_two_devices_fails():
    with other_device() as place:
        there, here = torch.arange(6.0).to(place), torch.ones(6)
        for mixed in (
            lambda: there + here,
            lambda: torch.cat([there, here]),
            lambda: there.copy_(here) + here,
        ):
            with pytest.raises(AssertionError, match="in two places"):
                mixed()
        with pytest.raises(AssertionError, match="in two places"):
            torch.stack([there[0], here[0]])  # `stack` does no arithmetic.
        with pytest.raises(AssertionError, match="in two places"):
            there[torch.tensor([1, 2])] = here[:2]
        with pytest.raises(AssertionError, match="generator of the CPU"):
            torch.rand(3, generator=torch.Generator(), device=place)
        with pytest.raises(RuntimeError, match="numpy"):
            there.numpy()
        assert float((there * here[0])[torch.tensor([1, 5])].sum()) == 2.0


def test_a_tensor_changed_in_place_or_through_a_view_is_the_same_tensor():
    with other_device() as place:
        table = torch.zeros(2, 3).to(place)
        row = table[1]
        assert row.add_(1.0) is row and isinstance(row, There)
        table.requires_grad_()
        (table * 2).sum().backward()
        assert torch.equal(table.detach().cpu(), torch.tensor([[0.0] * 3, [1.0] * 3]))
        assert torch.equal(table.grad.cpu(), torch.full((2, 3), 2.0))


def test_a_tensor_created_on_the_other_device_has_its_values():
    with other_device() as place:
        there = torch.zeros(1).to(place)
        made = (
            torch.tensor([2.0], device=place), torch.as_tensor([2.0], device=place), there.new_tensor([2.0]),
            torch.full((1,), 2.0, device=place), there.new_full((1,), 2.0), torch.full((1,), 2.0).to(there),
        )  # fmt: skip
        assert all(isinstance(one, There) and one.tolist() == [2.0] for one in made)
