"""An audit that compares the files of a run: each accepted answer was made by its device and counted once.

The coordinator's spool names the answers of each phase. Its events name the answers that the server half got,
in all processes of the coordinator. The log of each device names the answers of that device. The audit also computes
the whole run once more, without a network, from the plan, the data and the participants.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from protofleet.coordinator.observe.rounds_file import copy_of, read_rounds
from protofleet.coordinator.spool.spool import Spool
from protofleet.edge_client.data.shard import load_shard
from protofleet.edge_client.trainer.job import work
from protofleet.methods.contract.base import Ask, Member, Reply
from protofleet.methods.contract.bridge import to_numpy, to_torch
from protofleet.protocol.wire.arrays import encode
from protofleet.protocol.wire.names import COORDINATOR
from tests.chaos.closed_phases import ClosedPhase, closed_phases
from tests.chaos.recoded import Recoded
from tests.chaos.world import RunFiles
from tests.support.events import events_in

SAID = r"INFO {}round (\d+) (\S+): sending the update ([0-9a-f]{{64}})"
FINISHED = re.compile(r'\{"event": "round", "round": (\d+)')
Said = tuple[int, str, str]  # Round, phase and name of the answer.


@dataclass
class Evidence:
    rounds: int  # The number of planned rounds; one more round evaluates.
    closed: list[ClosedPhase]  # The phases in the spool, in its order.
    given: list[ClosedPhase]  # The answers that the server half got, by the events; a replay repeats them.
    said: Mapping[str, set[Said]]  # The answers of each device, by its log.
    lines: list[dict[str, Any]]  # The lines of rounds.jsonl.
    copies: list[dict[str, Any]]  # The lines of the copy of rounds.jsonl.
    logs: Mapping[str, str] = field(default_factory=dict)
    weights: int = 0  # Bytes of the weights in one answer; 0 if the answers differ in size.
    full_disk: frozenset[int] = frozenset()  # The rounds in which the coordinator's disk was full.

    @property
    def final(self) -> list[ClosedPhase]:
        """Return the answers that each phase has counted at last.

        A repeated round has counted only the answers of its last attempt.
        """
        last = {(c.round, c.phase): c for c in self.closed}
        return [c for c in last.values() if not c.reopened]


def violations(e: Evidence) -> list[str]:
    checks = rounds_in_order, counted_once, given_as_closed, made_by_its_device, bytes_add_up, no_traceback
    return [words for check in checks for words in check(e)]


def rounds_in_order(e: Evidence) -> Iterable[str]:
    numbers = [line["round"] for line in e.lines]
    if numbers != list(range(1, e.rounds + 2)):
        yield f"rounds.jsonl has rounds {numbers}, not 1 to {e.rounds + 1}"
    if e.copies != e.lines:
        yield f"the copy of rounds.jsonl has other lines, of rounds {[line['round'] for line in e.copies]}"
    order = [c.round for c in e.closed]
    if order != sorted(order):
        yield f"a round was counted after a later one: {order}"


def counted_once(e: Evidence) -> Iterable[str]:
    """Find a closed phase that changed, and a line of rounds.jsonl whose devices are not the counted devices."""
    latest: dict[tuple[int, str], ClosedPhase] = {}
    for c in e.closed:
        if c.reopened:
            latest.pop((c.round, c.phase), None)
            continue
        before = latest.setdefault((c.round, c.phase), c)
        if before.answers != c.answers:
            yield f"round {c.round} {c.phase} counted {sorted(before.answers)}, then {sorted(c.answers)}"
    for line in e.lines:
        took_part = {device for c in e.final if c.round == line["round"] for device in c.answers}
        if took_part != set(line["participants"]):
            yield f"round {line['round']} counted {sorted(took_part)}, its line says {line['participants']}"


def given_as_closed(e: Evidence) -> Iterable[str]:
    """Find answers that the server half got from no closed phase, and closed phases that it never got.

    This covers the time before a kill and after it.
    """
    known = [(c.round, c.phase, c.answers) for c in e.closed if not c.reopened]
    for c in e.given:
        if (c.round, c.phase, c.answers) not in known:
            yield f"round {c.round} {c.phase} gave {sorted(c.answers)} to the server half, and was not closed so"
    for c in e.final:
        if c not in e.given:
            yield f"round {c.round} {c.phase} never gave {sorted(c.answers)} to the server half"


def made_by_its_device(e: Evidence) -> Iterable[str]:
    for c in e.closed:
        for device, name in c.answers.items():
            if (c.round, c.phase, name) not in e.said.get(device, set()):
                yield f"round {c.round} {c.phase} counted {name[:16]} of {device}, which never said it"


def bytes_add_up(e: Evidence) -> Iterable[str]:
    """Find rounds whose payload exceeds the wire, or in which the weights of an answer were not sent once."""
    for line in e.lines:
        for way, kinds in line["payload"].items():
            for kind, n in kinds.items():
                if n > line["wire"][way].get(kind, 0):
                    yield f"round {line['round']}: more {kind} bytes {way} than crossed the wire"
        if e.weights and line["kind"] == "training" and not line["resumed"]:
            up, least, most = line["payload"]["up"].get("weights", 0), *bounds(e, line)
            if not least <= up <= most:
                yield f"round {line['round']}: {up} bytes of weights went up, not {least} to {most}"


def bounds(e: Evidence, line: Mapping[str, Any]) -> tuple[int, float]:
    """Return the smallest and the largest number of bytes of weights that a round may have received.

    Each asked device sends its answer once. If a round begins again, the coordinator deletes unfinished answers,
    so an answer may be sent once in each attempt. The line has the bytes of all attempts, but the devices of the
    last. A full disk has no upper bound, because the coordinator deletes unfinished answers each time it needs
    the space.
    """
    took_part, asked = set(line["participants"]), {d for phase in line["phases"] for d in phase["asked"]}
    could = len(e.said) * (1 + line["attempt"]) if line["attempt"] else len(asked | took_part)
    return e.weights * len(took_part), math.inf if line["round"] in e.full_disk else e.weights * could


def no_traceback(e: Evidence) -> Iterable[str]:
    for name, text in e.logs.items():
        if "Traceback" in text:
            last = text[text.index("Traceback") :].split("\n\n")[0].splitlines()
            yield f"{name}.log has a traceback that ends with {last[-1][:150]!r}"


def evidence_of(run: RunFiles) -> Evidence:
    results, plan = run.results, run.experiment.plan
    logs = {path.stem: path.read_text(errors="replace") for path in run.logs.glob("*.log")}
    weights = sum(v.nbytes for v in to_numpy(plan.server_half().payload()).values())
    return Evidence(
        plan.rounds,
        closed_phases(results / "coordinator"),
        given_in(run.logs / f"{COORDINATOR}.log", run.name),
        {device: said_in(logs[device], run.name) for device in run.experiment.shards},
        read_rounds(results / "rounds.jsonl"),
        read_rounds(copy_of(results / "rounds.jsonl")),
        logs,
        weights if plan.method == "fedavg" and plan.codec is None else 0,
        full_disk_in(logs[COORDINATOR], run.name),
    )


def given_in(log: Path, run: str = "") -> list[ClosedPhase]:
    """Return the answers that the server half got, by the events of a run; `run` is "" if the events name none."""
    counted = [
        event for event in events_in(log) if event["event"] == "counted" and event.get("run", "") == run
    ]
    return [ClosedPhase(event["round"], event["phase"], event["answers"]) for event in counted]


def full_disk_in(log: str, run: str = "") -> frozenset[int]:
    """Return the rounds of a run in which the coordinator's disk was full, by its log."""
    found, seen, is_full = set(), False, False
    named = f'"run": "{run}"' if run else ""
    for line in log.splitlines():
        if "the disk that holds" in line:
            seen, is_full = True, "there is room again" not in line
        elif seen and named in line and (finished := FINISHED.match(line)):
            found.add(int(finished[1]))
            seen = is_full
    return frozenset(found)


def said_in(log: str, run: str = "") -> set[Said]:
    pattern = SAID.format(re.escape(f"{run}: ") if run else "")
    return {(int(number), phase, name) for number, phase, name in re.findall(pattern, log)}


def computed_again(run: RunFiles, e: Evidence) -> list[str]:
    """Compute the whole run once more in this process.

    It compares each answer by name, and the last state bit by bit.
    """
    torch.set_num_threads(1)
    plan = run.experiment.plan
    server, view = plan.server_half(), plan.variant.reports
    data = {name: load_shard(settings) for name, settings in run.experiment.shards.items()}
    halves = {
        name: plan.client_half(part.train, name, validation=part.validation) for name, part in data.items()
    }
    counted, codec = {(c.round, c.phase): c.answers for c in e.final}, Recoded(plan)
    took_part = {line["round"]: line["participants"] for line in e.lines}
    for number in range(1, plan.rounds + 1):
        server.begin(number, [member_of(name, data[name]) for name in took_part.get(number, [])])
        steps = server.round()
        ask: Ask | None = next(steps)
        while ask is not None:
            answers, replies = counted.get((number, ask.phase)), []
            if answers is None:
                return [f"round {number} {ask.phase}: the spool never closed it"]
            shown = codec.broadcast(to_numpy(ask.payload), number, ask.phase)
            received = replace(ask, payload=to_torch(shown))
            for name in sorted(answers):
                payload, _ = work(halves[name], data[name], received, number, view)
                sent, decoded = codec.update(name, to_numpy(payload), number, ask.phase)
                made = hashlib.sha256(b"".join(map(bytes, encode(sent)))).hexdigest()
                if made != answers[name]:
                    return [
                        f"round {number} {ask.phase}: {name}'s answer is {made[:16]}, not {answers[name][:16]}"
                    ]
                replies.append(Reply(name, len(data[name].train.y), decoded))
            try:
                ask = steps.send(replies)
            except StopIteration:
                ask = None
    return same_state(run, to_numpy(server.state()))


def member_of(name: str, shard: Any) -> Member:
    counts = shard.train.y.bincount(minlength=shard.classes).tolist()
    return Member(name, len(shard.train.y), tuple(counts))


def same_state(run: RunFiles, wanted: Mapping[str, Any]) -> list[str]:
    spool = Spool(run.results / "coordinator")
    try:
        found = spool.server_state() or {}
        if found.keys() != wanted.keys():
            return [f"the last state has {sorted(found)}, not {sorted(wanted)}"]
        return [
            f"the last state's {name} is not what the answers make"
            for name in wanted
            if found[name].tobytes() != wanted[name].tobytes()
        ]
    finally:
        spool.close()
