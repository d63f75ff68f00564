"""Write the measured cost of the codecs: python -m tools.pages.codec_figures RUN ... [--experiment NAME=ARGUMENTS].

RUN is the folder of a finished run that is called NAME-CODEC-sSEED, such as fedavg-small-s3. Other folders are left
out. NAME is the name of a method, or another name if the method ran with other settings. `--experiment` says how the
runs of NAME were started, such as fedavg="experiments/digits/fedavg.toml". It may be left out if the figures already
say it. Without RUN, only the page is written.

The figures of the named methods in lab/report/measured_codecs.json are replaced. Then the tables of docs/codecs.md
are written. Accuracy is the mean over the domains and over the last evaluations, as in `protofleet compare --front`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

from protofleet.lab.report.comparison import ComparedRun
from protofleet.lab.report.finished_run import SUMMARY
from protofleet.lab.report.front import last_accuracy
from protofleet.lab.report.measured_codecs import (
    PATH,
    MeasuredCodec,
    MeasuredMethod,
    read_measured,
    seed_text,
)
from protofleet.protocol.settings.named_codecs import NAMED, OFF
from tools.pages.generated_table import DOCS, replace_table
from tools.pages.measured_figures import finished_runs, newest_day, write_figures_file

PAGE: Final = DOCS / "codecs.md"
MODULE: Final = "tools.pages.codec_figures"
FOLDER: Final = re.compile(rf"(?P<name>\w+)-(?P<codec>{'|'.join((OFF, *NAMED))})-s?(?P<seed>\d+)")
HEAD: Final = (
    "| `codec` | seeds | bytes of arrays | times fewer | times fewer on the wire "
    "| difference in accuracy, in points |\n"
    "|---|---|---|---|---|---|\n"
)
Runs = Mapping[int, ComparedRun]  # Run of each seed.


def accuracy_of(run: ComparedRun) -> float:
    """Return the accuracy of a run in percent."""
    return 100 * last_accuracy(run, run.summary["reports"])


def bytes_of(run: ComparedRun, name: str) -> int:
    return run.total_bytes(name, "up", "down")


def compared(codec: str, runs: Runs, plain: Runs) -> MeasuredCodec:
    """Compare the runs of a codec with the runs with codec off; only seeds of both are used."""
    seeds = tuple(sorted(runs.keys() & plain.keys()))
    if not seeds:
        raise SystemExit(f"no run with codec {codec} has the seed of a run with codec {OFF}; make such runs")
    apart = [accuracy_of(runs[seed]) - accuracy_of(plain[seed]) for seed in seeds]
    sizes = {name: [bytes_of(runs[seed], name) for seed in seeds] for name in ("payload", "wire")}
    times = {
        name: fmean(bytes_of(plain[seed], name) / size for seed, size in zip(seeds, found, strict=True))
        for name, found in sizes.items()
    }
    return MeasuredCodec(
        codec, seeds, round(fmean(sizes["payload"])), round(fmean(sizes["wire"])), round(times["payload"], 3),
        round(times["wire"], 3), round(fmean(apart), 3),
        round(stdev(apart) / len(apart) ** 0.5, 3) if len(apart) > 1 else None,
    )  # fmt: skip


def measured_method(name: str, runs: Mapping[str, Runs], experiment: str, commit: str) -> MeasuredMethod:
    """Return the figures of one method; `commit` replaces the commit that the runs have recorded."""
    if not (plain := runs.get(OFF)):
        raise SystemExit(f"{name} has no run with codec {OFF}, with which the others are compared; make one")
    all_runs = [run for group in runs.values() for run in group.values()]
    commits = {run.summary.get("versions", {}).get("commit", "unknown")[:8] for run in all_runs}
    first = plain[min(plain)]
    return MeasuredMethod(
        name, first.summary["method"], experiment, first.summary["rounds"],
        newest_day(run.folder / SUMMARY for run in all_runs), commit or ", ".join(sorted(commits)),
        tuple(sorted(plain)),
        round(fmean(accuracy_of(run) for run in plain.values()), 3),
        round(fmean(bytes_of(run, "payload") for run in plain.values())),
        tuple(compared(codec, runs[codec], plain) for codec in NAMED if codec in runs),
    )  # fmt: skip


def read_runs(folders: Sequence[Path]) -> dict[str, dict[str, dict[int, ComparedRun]]]:
    """Return the finished runs by method, codec and seed."""
    found: dict[str, dict[str, dict[int, ComparedRun]]] = {}
    for name, run in finished_runs(folders, FOLDER):
        found.setdefault(name["name"], {}).setdefault(name["codec"], {})[int(name["seed"])] = run
    return found


def table_of(method: MeasuredMethod) -> str:
    text = (
        f"\n**{method.name}** (`{method.experiment}`, {method.rounds} rounds, {seed_text(method.seeds)}, "
        f'{method.date}, commit {method.commit}).\nWith `codec = "off"`: {method.accuracy:.1f} % accuracy.\n\n{HEAD}'
        f"| {OFF} | {len(method.seeds)} | {method.arrays:,.0f} | | | |\n"
    )
    return text + "".join(
        f"| {one.codec} | {len(one.seeds)} | {one.arrays:,.0f} | {one.times_arrays:.1f} | {one.times_wire:.1f} "
        f"| {one.points} |\n"
        for one in method.codecs
    )


def generate(page: str, methods: Sequence[MeasuredMethod] | None = None) -> str:
    return replace_table(
        page, MODULE, "".join(map(table_of, read_measured() if methods is None else methods))
    )


def write_figures(
    folders: Sequence[Path], experiments: Mapping[str, str], commit: str = "", path: Path = PATH
) -> None:
    """Replace the figures of the methods that the runs have; the figures of other methods stay."""
    known = {one.name: one for one in read_measured(path)} if path.exists() else {}
    for name, runs in read_runs(folders).items():
        experiment = experiments.get(name) or (known[name].experiment if name in known else "")
        if not experiment:
            raise SystemExit(f"it is not known how {name} was run; say it with --experiment {name}=ARGUMENTS")
        known[name] = measured_method(name, runs, experiment, commit)
    write_figures_file(path, {"methods": [asdict(known[name]) for name in sorted(known)]})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--experiment", action="append", default=[], metavar="NAME=ARGUMENTS")
    parser.add_argument("--commit", default="", help="the commit of the code; default: what the runs say")
    options = parser.parse_args()
    if options.runs:
        pairs = (one.partition("=") for one in options.experiment)
        write_figures(options.runs, {name: words for name, _, words in pairs}, options.commit)
    PAGE.write_text(generate(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
