"""`python -m tests.two_trees BEFORE AFTER [method ...]` mixes two checkouts of this project in one federation.

It uses real processes and a secured Mosquitto. From run to run, the coordinator and the devices come from different
checkouts, but the results must stay the same: the hashes of all kept answers, of broadcasts and of states, and the
measured values.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import sys
import tempfile
from pathlib import Path

from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract import catalog as methods
from protofleet.methods.contract.plan import Network
from tests.chaos.campaign import pictures
from tests.hostile.federation import Federation

DEVICES = ("one", "three", "two")
TOGETHER = Policy(quorum=3, cohort=3, patience_seconds=90.0, settle_seconds=0.2)
SETTINGS = {"fedpall": {"server_epochs": 1}, "fedhp": {"init_steps": 20}}
WORLDS = {  # The tree of the coordinator and of each device. All results must equal those of the first world.
    "all before": ("before", "before", "before", "before"),
    "all after": ("after", "after", "after", "after"),
    "coordinator before, devices after": ("before", "after", "after", "after"),
    "coordinator after, devices before": ("after", "before", "before", "before"),
    "coordinator after, devices mixed": ("after", "before", "after", "before"),
}


def main(before: str, after: str, *chosen: str) -> int:
    trees, wrong = {"before": before, "after": after}, 0
    for method in chosen or methods.names():
        first = None
        for world, whose in WORLDS.items():
            found, complaints = learned(method, [trees[one] for one in whose])
            first = first or found
            wrong += found != first or bool(complaints)
            print(
                f"{method:10} {world:34} {found[:16]} {'same' if found == first else 'DIFFERENT'}", flush=True
            )
            for line in complaints:
                print(f"    {line}", flush=True)
    return int(wrong > 0)


def learned(method: str, trees: list[str]) -> tuple[str, list[str]]:
    """Run a federation and return a digest of its results, and its problems: bad exit codes, rejected messages."""
    with tempfile.TemporaryDirectory() as folder, Federation(
        Path(folder), *DEVICES, policy=TOGETHER, rounds=2, network=Network("mlp", feature_size=256),
        method={"name": method, **SETTINGS.get(method, {})},
    ) as f:  # fmt: skip
        first, *others = (of(Path(tree).resolve(), f.folder / "trees") for tree in trees)
        coordinator, ours = f.coordinator(through=first), []
        for number, (name, through) in enumerate(zip(DEVICES, others, strict=True)):
            pictures(f.folder / "pictures" / name, seed=number)
            ours.append(f.device(name, through=through))
        ends = [f.wait_for_end(one, 240.0) for one in (coordinator, *ours)]
        complaints = [] if ends == [0] * 4 else [f"ended with {ends}: {f.last_words()}"]
        complaints += [f"{line['round']}: {line['rejected']}" for line in f.rounds() if line["rejected"]]
        complaints += [x for one in ours for x in f.log_of(one).splitlines() if "rejected" in x]
        return digest(f.run), complaints


def of(tree: Path, places: Path) -> list[str]:
    """Return the command line prefix that starts a process of that tree.

    The process imports the tree from a folder in which links give all of its packages the names `protofleet.*`.
    """
    place = places / hashlib.sha256(bytes(tree)).hexdigest()[:8]
    if not place.exists():
        (made := place / "protofleet").mkdir(parents=True)
        if (own := tree / "protofleet").exists():
            for part in (
                *own.iterdir(),
                *(path.parent for path in tree.glob("*/__init__.py") if path.parent != own),
            ):
                (made / part.name).symlink_to(part)
        else:  # An older tree, in which the packages had no common name.
            (made / "__main__.py").write_text(
                "import runpy\n\nrunpy.run_module('deploy.cli', run_name='__main__')\n"
            )
    return ["env", "-C", str(place), f"PYTHONPATH={place}:{tree}"]


def digest(run: Path) -> str:
    with contextlib.closing(sqlite3.connect(run / "coordinator" / "spool.sqlite")) as db:
        rows = db.execute("SELECT round, phase, device, base, object, metrics FROM accepted").fetchall()
        states = db.execute("SELECT round, attempt, object FROM checkpoint ORDER BY id").fetchall()
    told = [[r, p, d, b.hex(), o.hex(), measures(m)] for r, p, d, b, o, m in sorted(rows)]
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    pooled = [[line["participants"], line["pooled"]] for line in lines]
    return hashlib.sha256(json.dumps([told, states, pooled]).encode()).hexdigest()


def measures(text: str) -> dict[str, float]:
    return {name: value for name, value in sorted(json.loads(text).items()) if name != "seconds.work"}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
