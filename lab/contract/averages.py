"""Check that the phases which a method declares as averaged use the replies only through their mean.

The mean is computed here in a plain way, array by array and class by class.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from protofleet.lab.contract.halves import SERVER, Halves, answer_of, close
from protofleet.lab.contract.worlds import Subject, require
from protofleet.methods.contract import given
from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.base import Ask, Payload, Reply, Round
from protofleet.methods.parts.state import snapshot


def one_mean_stands_for_all_replies(subject: Subject, rounds: int = 2) -> None:
    """Require that one reply with the mean leaves the same state as all replies, in each averaged phase."""
    plan = subject.plan()
    averaged = plan.variant.averaged
    halves, other = Halves(plan), Halves(plan)
    seen = set[str]()
    for number in range(1, rounds + 1):
        halves.begin(number)
        other.begin(number)
        one, two = given.round_of(halves.server), given.round_of(other.server)
        ask: Ask | None = given.first_ask(halves.server, one)
        given.first_ask(other.server, two)
        while ask:
            sent = {n: answer_of(client, ask) for n, client in sorted(halves.clients.items())}
            replies = [Reply(n, len(halves.data[n].y), payload) for n, payload in sent.items()]
            rule = averaged.get(ask.phase)
            if rule is not None:
                seen.add(ask.phase)
                uncovered = rule.uncovered(ask.wants)
                require(
                    not uncovered,
                    f"METHOD has averaged={{{ask.phase!r}: ...}}, but the phase also requests "
                    f"{', '.join(uncovered[:3])}",
                )
            mean = replies if rule is None else [mean_reply(replies, rule, halves.counts)]
            ask = next_ask(halves, one, replies)
            next_ask(other, two, mean)
            single = rule.single if rule else ()
            before, after = (without(snapshot(one.server.state()), single) for one in (halves, other))
            wrong = [k for k, value in before.items() if k not in after or not close(value, after[k])]
            require(
                not wrong and before.keys() == after.keys(),
                f"{SERVER}: METHOD has averaged phases, but {', '.join(wrong[:3])} is different if one reply has the "
                "mean of all replies",
            )
    unseen = sorted(averaged.keys() - seen)
    require(not unseen, f"METHOD has averaged={{{', '.join(unseen)}: ...}}, and no round has this phase")


def next_ask(halves: Halves, story: Round, replies: list[Reply]) -> Ask | None:
    try:
        return given.ask_of(halves.server, story.send(replies))
    except StopIteration:
        return None


def without(state: Payload, names: Collection[str]) -> Payload:
    return {name: value for name, value in state.items() if name not in names}


def mean_reply(replies: list[Reply], rule: Averaged, counts: Mapping[str, Tensor]) -> Reply:
    """Return one reply with the mean of all replies; `counts` has each device's samples of each class."""
    examples = [reply.examples if rule.by == "examples" else 1 for reply in replies]
    names = [name for name in replies[0].payload if name.partition(".")[0] in rule.arrays]
    found: dict[str, Tensor] = {}
    for name in names:
        arrays = [reply.payload[name] for reply in replies]
        if not arrays[0].is_floating_point():
            found[name] = arrays[0]
            continue
        total = sum(n * array.double() for n, array in zip(examples, arrays, strict=True))
        found[name] = (total / sum(examples)).to(arrays[0].dtype)  # type: ignore[union-attr]
    if rule.rows:
        found |= mean_rows([rows_of(reply, rule, counts) for reply in replies], rule.rows)
    return Reply("mean", sum(reply.examples for reply in replies), found)


def rows_of(reply: Reply, rule: Averaged, counts: Mapping[str, Tensor]) -> Payload:
    """Return the rows of the classes that a device has, with their labels and counts."""
    if not rule.table:
        return reply.payload
    held = counts[reply.device].nonzero().flatten()
    rows = reply.payload["prototypes"][held]
    return {"prototypes": rows, "labels": held, "counts": counts[reply.device][held]}


def mean_rows(payloads: list[Payload], by: str) -> Mapping[str, Tensor]:
    rows: dict[int, list[tuple[float, Tensor]]] = {}
    for payload in payloads:
        labels, counts = payload["labels"].tolist(), payload["counts"].tolist()
        for label, count, row in zip(labels, counts, payload["prototypes"], strict=True):
            weight = {"devices": 1, "counts": count, "shares": count / sum(counts)}[by]
            rows.setdefault(label, []).append((weight, row.double()))
    held = sorted(rows)
    totals = [sum(count for count, _ in rows[label]) for label in held]
    means = [
        torch.stack([count * row for count, row in rows[label]]).sum(0) / total
        for label, total in zip(held, totals, strict=True)
    ]
    dtype = payloads[0]["prototypes"].dtype
    return {
        "prototypes": torch.stack(means).to(dtype),
        "labels": torch.tensor(held),
        # The sum of shares is no number of samples.
        "counts": torch.tensor([1] * len(held) if by == "shares" else totals),
    }
