"""`make chaos MINUTES=2 SEED=1`: real processes with random faults, and an audit at the end. See docs/chaos.md.

With --queue, the coordinator conducts a queue of runs. See docs/run-queue.md.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from tests.chaos.campaign import Campaign, Outcome
from tests.chaos.queue_campaign import QueueCampaign
from tests.chaos.seclusion import seclude, secluded


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if not options.no_namespaces:
        seclude(
            "tests.chaos", arguments
        )  # It returns only if the program runs in its namespaces already, or if namespaces are not allowed.
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    folder = options.folder or Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
    print(f"seed {seed}, {options.minutes:g} minutes; {ways()}; in {folder}", flush=True)
    kind = QueueCampaign if options.queue else Campaign
    campaign = kind(folder, seed, options.devices, options.rounds, options.pause, secluded())
    campaign.keep, campaign.only = options.keep, options.only
    campaign.choose(options.method)
    outcome = campaign.run(60 * options.minutes)
    print(table(outcome))
    return 1 if outcome.violations else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="make chaos")
    made.add_argument("--minutes", type=float, default=2.0)
    made.add_argument("--seed", type=int, default=None, help="the same one draws the same faults")
    made.add_argument("--devices", type=int, default=4)
    made.add_argument("--rounds", type=int, default=40, help="of each run")
    made.add_argument("--pause", type=float, default=4.0, help="seconds between two faults, on average")
    made.add_argument("--folder", type=Path, default=None)
    made.add_argument("--only", default="", metavar="WORDS", help="faults that have these in their name")
    made.add_argument(
        "--method", default="", help="runs of this one alone; with --queue, queues that have it"
    )
    made.add_argument(
        "--queue", action="store_true", help="a coordinator with a queue, and two runs at a time"
    )
    made.add_argument("--no-namespaces", action="store_true", help="cuts by proxies, as without root")
    made.add_argument("--keep", action="store_true", help="the folders of all runs")
    return made


def ways() -> str:
    if secluded():
        return "cables pulled in network namespaces, small disks"
    return "cuts by a proxy and no small disks, as this user may have no namespaces"


def table(o: Outcome) -> str:
    rows = [(kind, number) for kind, number in sorted(o.faults.items())]
    rows += [("faults", sum(o.faults.values())), ("starts after the first", sum(o.starts.values()))]
    rows += [("seconds", round(o.seconds)), ("runs finished", o.runs), ("rounds finished", o.rounds)]
    rows += [
        ("of them while faults came", o.harmed),
        ("of them resumed after a kill", o.resumed),
        ("begun again for want of answers", o.again),
    ]
    rows += [
        ("answers counted, each computed again", o.counted),
        ("devices that missed a run's end", o.unheard),
        ("second coordinators refused", o.refused),
    ]
    rows += [(f"ended by itself: {words}", number) for words, number in sorted(o.deaths.items())]
    rows += [("violations", len(o.violations))]
    lines = [f"{name:<100.100}{number:>8}" for name, number in rows]
    lines += [f"VIOLATION {words}" for words in o.violations]
    lines += [f"kept: {folder}" for folder in o.kept]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
