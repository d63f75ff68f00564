"""Was every accepted answer counted once, and made by its device? What the files of a run say, against each other.

The coordinator's ledger names what it gave to the server half; each device's log names what it said; and both are
computed once more here, without a network, from the plan, the data and who took part.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from protofleet.coordinator.observe.journal import read_rounds
from protofleet.coordinator.spool.spool import Spool
from protofleet.edge_client.data.shard import load_shard
from protofleet.edge_client.trainer.job import work
from protofleet.methods.contract.base import Ask, Member, Reply
from protofleet.methods.contract.bridge import to_numpy
from protofleet.protocol.wire.arrays import encode
from tests.chaos.world import World

SAID = re.compile(r"INFO round (\d+) (\S+): answer ([0-9a-f]{64})")
Said = tuple[int, str, str]  # round, phase, name of the answer


@dataclass(frozen=True)
class Counted:
    round: int
    phase: str
    answers: Mapping[str, str]  # device -> name of its answer
    again: bool = False  # nothing was counted: the round began again


@dataclass
class Evidence:
    rounds: int  # that were planned; one more evaluates
    counted: list[Counted]  # as the ledger has it, in its order
    said: Mapping[str, set[Said]]  # by each device, as its log has it
    lines: list[dict[str, Any]]  # of rounds.jsonl
    ledger_bytes: Mapping[int, int] = field(default_factory=dict)  # round -> all wire bytes in the ledger
    gaps: int = 0  # rows that the ledger says it lacks, as the disk was full
    logs: Mapping[str, str] = field(default_factory=dict)
    weights: int = 0  # bytes of one answer's weights, where every answer has as many

    @property
    def final(self) -> list[Counted]:
        """What each phase has counted in the end: a round that began again has counted only what came last."""
        return list({(c.round, c.phase): c for c in self.counted if not c.again}.values())


def violations(e: Evidence) -> list[str]:
    return [*rounds_in_order(e), *counted_once(e), *made_by_its_device(e), *bytes_add_up(e), *no_traceback(e)]


def rounds_in_order(e: Evidence) -> Iterable[str]:
    numbers = [line["round"] for line in e.lines]
    if numbers != list(range(1, e.rounds + 2)):
        yield f"rounds.jsonl has rounds {numbers}, not 1 to {e.rounds + 1}"
    order = [c.round for c in e.counted]
    if order != sorted(order):
        yield f"a round was counted after a later one: {order}"


def counted_once(e: Evidence) -> Iterable[str]:
    """A replay counts what was counted before; a line of rounds.jsonl has everybody who was, and nobody else."""
    latest: dict[tuple[int, str], Counted] = {}
    for c in e.counted:
        if c.again:  # whose answers make up the round is open once more
            latest = {}
            continue
        before = latest.setdefault((c.round, c.phase), c)
        if before.answers != c.answers:
            yield f"round {c.round} {c.phase} counted {sorted(before.answers)}, then {sorted(c.answers)}"
    for line in e.lines:
        if e.gaps and line["round"] not in {c.round for c in e.final}:
            continue
        took_part = {device for c in e.final if c.round == line["round"] for device in c.answers}
        if took_part != set(line["participants"]):
            yield f"round {line['round']} counted {sorted(took_part)}, its line says {line['participants']}"


def made_by_its_device(e: Evidence) -> Iterable[str]:
    for c in e.counted:
        for device, name in c.answers.items():
            if (c.round, c.phase, name) not in e.said.get(device, set()):
                yield f"round {c.round} {c.phase} counted {name[:16]} of {device}, which never said it"


def bytes_add_up(e: Evidence) -> Iterable[str]:
    """Every answer's weights crossed once; the ledger has what the lines have."""
    for line in e.lines:
        wire = sum(n for kinds in line["wire"].values() for n in kinds.values())
        known = e.ledger_bytes.get(line["round"])
        if known != wire and not (known is None and e.gaps):
            yield f"round {line['round']}: {wire} bytes in its line, {known} in the ledger"
        for way, kinds in line["payload"].items():
            for kind, n in kinds.items():
                if n > line["wire"][way].get(kind, 0):
                    yield f"round {line['round']}: more {kind} bytes {way} than crossed the wire"
        if e.weights and line["kind"] == "training" and not line["resumed"]:
            up, least, most = line["payload"]["up"].get("weights", 0), *bounds(e, line)
            if not least <= up <= most:
                yield f"round {line['round']}: {up} bytes of weights went up, not {least} to {most}"


def bounds(e: Evidence, line: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes of weights that may have come in a round: every answer once, of those who were asked.

    Of a round that began again the line has the last attempt, and the bytes are those of all of them.
    """
    took_part, asked = set(line["participants"]), {d for phase in line["phases"] for d in phase["asked"]}
    could = len(e.said) if line["attempt"] else len(asked | took_part)
    return e.weights * len(took_part), e.weights * could


def no_traceback(e: Evidence) -> Iterable[str]:
    for name, text in e.logs.items():
        if "Traceback" in text:
            last = text[text.index("Traceback") :].split("\n\n")[0].splitlines()
            yield f"{name}.log has a traceback that ends with {last[-1][:150]!r}"


def evidence_of(world: World) -> Evidence:
    results, plan = world.results, world.experiment.plan
    db = sqlite3.connect(results / "ledger.sqlite")
    rows = db.execute("SELECT what, details FROM moments WHERE what IN ('counted', 'again') ORDER BY rowid")
    counted = [counted_in(what, json.loads(details)) for what, details in rows.fetchall()]
    crossed = dict(db.execute("SELECT round, SUM(wire) FROM bytes GROUP BY round").fetchall())
    (gaps,) = db.execute("SELECT SUM(details ->> 'rows') FROM moments WHERE what = 'gap'").fetchone()
    db.close()
    logs = {path.stem: path.read_text(errors="replace") for path in world.logs.glob("*.log")}
    weights = sum(v.nbytes for v in to_numpy(plan.server_half().payload()).values())
    return Evidence(
        plan.rounds,
        counted,
        {device: said_in(logs[device]) for device in world.devices},
        read_rounds(results / "rounds.jsonl"),
        crossed,
        gaps or 0,
        logs,
        weights if plan.method == "fedavg" else 0,
    )


def counted_in(what: str, details: Mapping[str, Any]) -> Counted:
    return Counted(details["round"], details.get("phase", ""), details.get("answers", {}), what == "again")


def said_in(log: str) -> set[Said]:
    return {(int(number), phase, name) for number, phase, name in SAID.findall(log)}


def computed_again(world: World, e: Evidence) -> list[str]:
    """The whole run once more, in this process: every answer by name, and the last state bit by bit."""
    torch.set_num_threads(1)
    plan = world.experiment.plan
    server, view = plan.server_half(), plan.variant.reports
    data = {name: load_shard(settings) for name, settings in world.experiment.shards.items()}
    halves = {name: plan.client_half(part.train, name) for name, part in data.items()}
    counted = {(c.round, c.phase): c.answers for c in e.final}
    took_part = {line["round"]: line["participants"] for line in e.lines}
    for number in range(1, plan.rounds + 1):
        server.begin(number, [member_of(name, data[name]) for name in took_part.get(number, [])])
        steps = server.round()
        ask: Ask | None = next(steps)
        while ask is not None:
            answers, replies = counted.get((number, ask.phase)), []
            if answers is None and not e.gaps:
                return [f"round {number} {ask.phase}: the ledger has not what was counted"]
            for name in sorted(took_part[number] if answers is None else answers):
                payload, _ = work(halves[name], data[name], ask, number, view)
                made = hashlib.sha256(b"".join(map(bytes, encode(to_numpy(payload))))).hexdigest()
                if answers is not None and made != answers[name]:
                    return [
                        f"round {number} {ask.phase}: {name}'s answer is {made[:16]}, not {answers[name][:16]}"
                    ]
                replies.append(Reply(name, len(data[name].train.y), payload))
            try:
                ask = steps.send(replies)
            except StopIteration:
                ask = None
    return same_state(world, to_numpy(server.state()))


def member_of(name: str, shard: Any) -> Member:
    counts = shard.train.y.bincount(minlength=shard.classes).tolist()
    return Member(name, len(shard.train.y), tuple(counts))


def same_state(world: World, wanted: Mapping[str, Any]) -> list[str]:
    spool = Spool(world.results / "coordinator")
    try:
        found = spool.state() or {}
        if found.keys() != wanted.keys():
            return [f"the last state has {sorted(found)}, not {sorted(wanted)}"]
        return [
            f"the last state's {name} is not what the answers make"
            for name in wanted
            if found[name].tobytes() != wanted[name].tobytes()
        ]
    finally:
        spool.shut()
