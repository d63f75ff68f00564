"""Check a method's halves directly, without a network.

The halves must send exactly as many bytes as `cost` computes, and must not keep replies. A half that
continues from a saved state must give the same bits as a half that was not stopped.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from protofleet.lab.contract.lost import lost
from protofleet.lab.contract.worlds import ContractError, Subject, require, shard
from protofleet.methods.contract import given
from protofleet.methods.contract.base import Ask, ClientHalf, Member, Payload, Reply, ServerHalf
from protofleet.methods.contract.cost import Cost, Sizes
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.public import PublicSet
from protofleet.methods.parts.state import snapshot
from protofleet.protocol.wire.kinds import UNDECLARED

CLASSES: Final = 3
SERVER: Final = "the server half"
EVERY_CLASS: Final = ((0, 1, 2), (0, 1), (2,))


class Expired(Mapping[str, Tensor]):
    """A device's update that raises an error when it is read after the end of its round.

    A real coordinator keeps an update on the disk and deletes it at the end of the round.
    """

    def __init__(self, payload: Payload) -> None:
        self.payload, self.over = payload, False

    def __getitem__(self, name: str) -> Tensor:
        if self.over:
            raise ContractError(
                f"{name} of a Reply is read after the end of its round; copy the values in round(), and do not keep "
                "the Reply"
            )
        return self.payload[name].clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self.payload)

    def __len__(self) -> int:
        return len(self.payload)


def answer_of(client: ClientHalf, ask: Ask) -> Payload:
    client.receive(snapshot(ask.payload))
    payload = snapshot(given.answer_of(client, Ask(ask.phase, snapshot(ask.payload))))
    problem = ask.problem_with(payload)
    require(problem is None, f"an answer is not what Ask.wants asks for: {problem and problem.message}")
    return payload


def bytes_by_kind(payload: Payload) -> Counter[str]:
    """Count the bytes of all arrays by the first part of their names."""
    found: Counter[str] = Counter()
    for name, value in payload.items():
        found[name.partition(".")[0]] += value.nbytes
    return found


def ranks_of(payload: Payload, half: ClientHalf | ServerHalf) -> dict[str, int]:
    """Return the rank of each matrix that was sent as factors (a product of two smaller matrices).

    The factors of a matrix are sent as one row of rank x (rows + columns + 1) numbers.
    """
    shared = getattr(half, "mutual", half.model).state_dict()
    found = {}
    for name, value in payload.items():
        whole = shared.get(name.removeprefix("weights."), value)
        if value.ndim < whole.ndim and len(value) < whole.numel():
            found[name] = len(value) // (len(whole) + whole[0].numel() + 1)
    return found


class Halves:
    """The server half and all client halves of a plan, which run rounds without a coordinator.

    Every device gets the task of every round, also if the server half keeps its answer. So a check sees the cost and
    the state of more than one round.
    """

    def __init__(self, plan: Plan, classes: Sequence[tuple[int, ...]] = EVERY_CLASS) -> None:
        self.plan, self.held = plan, classes
        shards = {f"device-{i}": shard(i, classes=held) for i, held in enumerate(classes)}
        self.data = {name: part.train for name, part in shards.items()}
        self.clients = {
            name: plan.client_half(part.train, name, validation=part.validation)
            for name, part in shards.items()
        }
        self.server = plan.server_half()

    def all(self) -> dict[str, ClientHalf | ServerHalf]:
        return {SERVER: self.server, **self.clients}

    @property
    def counts(self) -> dict[str, Tensor]:
        """Return the number of samples of each class, of each device."""
        return {n: part.y.bincount(minlength=CLASSES) for n, part in sorted(self.data.items())}

    def begin(self, number: int) -> None:
        members = [
            Member(n, len(self.data[n].y), tuple(counts.tolist())) for n, counts in self.counts.items()
        ]
        self.server.fleet = len(members)
        self.server.begin(number, members)
        for client in self.clients.values():
            client.begin(number)

    def round(self, number: int) -> Iterator[tuple[Ask, dict[str, Payload]]]:
        """Run a round, and yield each task with the updates of the devices."""
        self.begin(number)
        story, expiring = given.round_of(self.server), list[Expired]()
        ask: Ask | None = given.first_ask(self.server, story)
        while ask:
            sent = {n: answer_of(client, ask) for n, client in sorted(self.clients.items())}
            yield ask, sent
            handed = {n: Expired(p) for n, p in sent.items()}
            expiring += handed.values()
            try:
                replies = [Reply(n, len(self.data[n].y), p) for n, p in handed.items()]
                ask = given.ask_of(self.server, story.send(replies))
            except StopIteration:
                ask = None
        for one in expiring:
            one.over = True

    def sizes(self, rounds: int) -> Iterator[tuple[Sizes, Counter[str], Counter[str]]]:
        """Yield the sizes, the bytes up by kind and the bytes down by kind, for each device in each round."""
        for number in range(1, rounds + 1):
            down, ranks_down = Counter[str](), dict[str, int]()
            up = {n: Counter[str]() for n in self.clients}
            ranks = dict[str, dict[str, int]]()
            for ask, sent in self.round(number):
                down.update(bytes_by_kind(ask.payload))
                ranks_down |= ranks_of(ask.payload, self.server)
                for n, payload in sent.items():
                    up[n].update(bytes_by_kind(payload))
                    ranks[n] = ranks_of(payload, self.clients[n])
            for n, client in self.clients.items():
                row = 4 * client.model.embedding_size
                yield (
                    Sizes(
                        client.model, held=len(set(self.data[n].y.tolist())), examples=len(self.data[n].y),
                        clients=len(self.clients), local_prototypes=up[n]["prototypes"] // row,
                        global_prototypes=down["prototypes"] // row, first_round=number == 1,
                        last_rounds="head" in up[n], ranks=ranks[n], ranks_down=ranks_down,
                        public=PublicSet().batches, known=len(set().union(*self.held)),
                        held_by_all=sum(len(set(held)) for held in self.held),
                        mutual=getattr(client, "mutual", None),
                    ),
                    up[n],
                    down,
                )  # fmt: skip


def cost_is_what_crosses(
    plan: Plan, rounds: int = 3, classes: Sequence[tuple[int, ...]] = EVERY_CLASS
) -> None:
    require(
        plan.load().cost is not None,
        "METHOD has no cost; add a function that computes the sent bytes: Method(..., cost=cost)",
    )
    cost_of, halves, cost = plan.variant.cost, Halves(plan, classes), Cost()
    for sizes, up, down in halves.sizes(rounds):
        assert cost_of is not None
        cost = cost_of(sizes)
        for way, said, crossed in (("up", cost.bytes_up, up), ("down", cost.bytes_down, down)):
            seen = {kind: size for kind, size in crossed.items() if size}
            require(said == seen, f"cost says {said or 'no'} bytes {way}, {seen or 'none'} crossed")
    if cost.last is not None:
        halves.begin(rounds + 1)
        seen = dict(bytes_by_kind(halves.server.payload()))
        require(
            cost.bytes_last == seen,
            f"cost says {cost.bytes_last} bytes down in the last evaluation, {seen} crossed",
        )


def arrays_are_declared(plan: Plan, rounds: int = 3) -> None:
    """Require that the method declares exactly the arrays that it uses.

    A round refuses arrays that are not declared. After the rounds, this check also finds arrays that are
    declared but were never sent or requested.
    """
    halves, seen = Halves(plan), set[str]()
    for number in range(1, rounds + 1):
        for ask, _ in halves.round(number):
            seen |= {*ask.payload, *ask.wants}
    halves.begin(rounds + 1)
    seen |= {*halves.server.payload()}
    firsts, kinds = {name.partition(".")[0] for name in seen}, plan.variant.kinds
    require(kinds != UNDECLARED, f"METHOD does not declare its arrays; write {given.declaration(firsts)}")
    unused = sorted(kinds.declared - firsts)
    require(not unused, f"METHOD declares {', '.join(unused)}, and no round of {rounds} sends or asks for it")


def replies_are_not_kept(subject: Subject) -> None:
    """Require that no Reply is read after its round, because its data are deleted at the end of the round."""
    halves = Halves(subject.plan())
    for number in (1, 2):
        for _ in halves.round(number):
            pass
        copy.deepcopy(dict(halves.server.state()))
        halves.server.monitor()


def state_goes_round(subject: Subject) -> None:
    """Require that a half continues correctly after restore().

    The state must be equal to the saved state. The next round must give the same bits as the next round of a
    half that was not restored.
    """
    halves, again = two_rounds(subject)
    for who, half in halves.all().items():
        require_state(who, half.state(), again.all()[who].state())
    before, after = sorted(halves.server.answered()), sorted(again.server.answered())
    require(before == after, f"{SERVER}: answered() gives {after} after restore(state()), it was {before}")
    for (_, one), (_, other) in zip(halves.round(3), again.round(3), strict=True):
        for who, payload in one.items():
            require_goes_on(subject, who, payload, other[who])
    for who, half in halves.all().items():
        require_goes_on(subject, who, half.state(), again.all()[who].state())


def removed_devices_are_forgotten(subject: Subject) -> None:
    """Require that forget() leaves nothing of a device whose answer the server half keeps.

    The state must have the bits of a half to which the device has never sent an answer.
    """
    plan = subject.plan()
    halves, without = Halves(plan), Halves(plan, EVERY_CLASS[:-1])
    for _ in halves.round(1):
        pass
    keeps, found = halves.server.keeps_answers, bool(halves.server.answered())
    says = "names devices" if found else "names no device"
    require(keeps == found, f"keeps_answers is {keeps}, but answered() {says} after a round")
    gone = sorted({*halves.server.answered()} - without.clients.keys())
    if not gone:
        return
    halves.server.forget(gone)
    left = {*halves.server.answered()}.intersection(gone)
    require(not left, f"answered() still names {', '.join(sorted(left))} after forget()")
    for _ in without.round(1):
        pass
    require_state(SERVER, without.server.state(), halves.server.state(), "after forget() of a device")


def rounds_without_answers_change_nothing(subject: Subject) -> None:
    """Require that a server half which keeps answers goes through a round in which no device answers."""
    halves = Halves(subject.plan())
    for _ in halves.round(1):
        pass
    if not halves.server.answered():
        return
    before = snapshot(halves.server.state())
    halves.begin(2)
    story = given.round_of(halves.server)
    given.first_ask(halves.server, story)
    with contextlib.suppress(StopIteration):
        while True:
            story.send([])
    require_state(SERVER, before, halves.server.state(), "after a round without answers")


def late_replies_count_less(subject: Subject) -> None:
    """Require what Method(buffered=True) declares: a late reply counts less, and only weights in proportion matter.

    A reply of almost no weight must leave the state of a round without this reply. Equal weights must leave the state
    of a round in which no reply is late.
    """
    plan = subject.plan()
    if not plan.variant.buffered:
        return
    equal = dict.fromkeys(Halves(plan).clients, 0.25)
    require_close(
        state_after_round(plan, {}), state_after_round(plan, equal), "if all replies are equally late"
    )
    *_, last = sorted(Halves(plan).clients)
    without, faint = state_after_round(plan, {}, last), state_after_round(plan, {last: 1e-9})
    require_close(without, faint, "if a reply has almost no weight")


def state_after_round(plan: Plan, weights: Mapping[str, float], left_out: str = "") -> Payload:
    """Return the state of the server half after a round of one phase; `weights` has the weights of late replies."""
    halves = Halves(plan)
    halves.begin(1)
    story = given.round_of(halves.server)
    ask = given.first_ask(halves.server, story)
    sent = {n: answer_of(client, ask) for n, client in sorted(halves.clients.items())}
    replies = [
        Reply(n, len(halves.data[n].y), payload, weights.get(n, 1.0))
        for n, payload in sent.items()
        if n != left_out
    ]
    try:
        phase = given.ask_of(halves.server, story.send(replies)).phase
    except StopIteration:
        return snapshot(halves.server.state())
    raise ContractError(f"METHOD has buffered=True, but a round has another phase after {ask.phase}: {phase}")


def require_close(one: Payload, other: Payload, when: str) -> None:
    wrong = [key for key, value in one.items() if key not in other or not close(value, other[key])]
    require(not wrong, f"{SERVER}: METHOD has buffered=True, but {', '.join(wrong[:3])} is different {when}")


def close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-5)


def two_rounds(subject: Subject) -> tuple[Halves, Halves]:
    """Run halves for two rounds, restore their state into new halves, and return the old and the new halves.

    One round is not enough, because much of the state may still have its initial value.
    """
    plan = subject.plan()
    halves, again = Halves(plan), Halves(plan)
    for number in (1, 2):
        for _ in halves.round(number):
            pass
    for who, half in halves.all().items():
        again.all()[who].restore(snapshot(half.state()))
    return halves, again


def require_goes_on(subject: Subject, who: str, one: Payload, other: Payload) -> None:
    wrong = [key for key, value in one.items() if key not in other or not torch.equal(value, other[key])]
    if wrong:
        words = left_out(subject) or "; state() leaves out something that the half has learned"
        raise ContractError(
            f"{who} gives different results after restore(state()), in {', '.join(wrong[:3])}{words}"
        )


def left_out(subject: Subject) -> str:
    """Return the end of an error message, with the attributes that state() leaves out; "" if there are none.

    The message says that a half gives other results after restore(state()).
    """
    halves, again = two_rounds(subject)
    halves.begin(3)
    again.begin(3)  # Attributes that begin() sets in every round need not be in state().
    found = {who: lost(half, again.all()[who]) for who, half in halves.all().items()}
    words = next((f"{names} of {who}" for who, names in found.items() if names), "")
    return f"; state() leaves out {words}" if words else ""


def require_state(who: str, one: Payload, other: Payload, when: str = "after restore(state())") -> None:
    require(
        one.keys() == other.keys(),
        f"{who}: state() gives {sorted(other)[:3]} {when}, it must give {sorted(one)[:3]}",
    )
    wrong = [key for key, value in one.items() if not torch.equal(value, other[key])]
    require(not wrong, f"{who}: {', '.join(wrong[:3])} is different {when}")
