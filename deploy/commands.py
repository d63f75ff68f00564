"""The sub-commands. Heavy imports happen inside, so that `--help` answers at once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from protofleet.deploy.enrol.options import add_enrol
from protofleet.deploy.flags import ROUND, SEED, SHARE
from protofleet.deploy.fleet.options import add_deploy, add_doctor

Jobs = Any  # argparse keeps the type of its sub-parsers to itself


def add_all(jobs: Jobs) -> None:
    add_run(jobs)
    add_coordinator(jobs)
    add_device(jobs)
    add_fleet(jobs)
    add_health(jobs)
    add_unban(jobs)
    add_keys(jobs)
    add_enrol(jobs)
    add_deploy(jobs)
    add_doctor(jobs)
    add_go_on(jobs)
    add_report(jobs)
    add_compare(jobs)
    add_lists(jobs)


def add_run(jobs: Jobs) -> None:
    job = jobs.add_parser(
        "run", help="a whole federation on this machine, from one TOML file; or many, in turn"
    )
    job.add_argument("experiments", type=Path, nargs="+", help="for example experiments/demo.toml")
    job.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="change a setting")
    job.add_argument("--runs", type=Path, default=Path("runs"), help="where results go (default: runs)")
    earlier = job.add_mutually_exclusive_group()
    earlier.add_argument("--fresh", action="store_true", help="put an earlier run of this name aside")
    earlier.add_argument(
        "--resume", action="store_true", help="only go on with an unfinished run; an error if there is none"
    )
    job.add_argument(
        "--seeds", type=SEED, nargs="+", default=[], help="run each file once for each, as <name>-s<seed>"
    )
    job.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from protofleet.deploy.alike import agreed_names
    from protofleet.deploy.experiment import read_experiment
    from protofleet.deploy.run import make_way, run_experiment
    from protofleet.deploy.sweep import Sweep
    from protofleet.protocol.settings import SettingsError

    if options.seeds or len(options.experiments) > 1:
        if options.resume:
            raise SettingsError("--resume goes on with one run; several are gone on with without it")
        return Sweep(options.runs, options.fresh).run(options.experiments, options.seeds, options.set)
    experiment = read_experiment(options.experiments[0], options.set)
    agreed_names(experiment)  # before an earlier run is put aside
    make_way(experiment, options.runs, options.fresh, options.resume)
    print(f"report: {run_experiment(experiment, options.runs)}")
    return 0


def add_coordinator(jobs: Jobs) -> None:
    job = jobs.add_parser("coordinator", help="conduct a run over a broker")
    job.add_argument("settings", type=Path)
    job.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    job.add_argument("--events", action="store_true", help="print what happens as JSON lines")
    job.set_defaults(command=coordinator)


def coordinator(options: argparse.Namespace) -> int:
    from protofleet.coordinator.config import CoordinatorSettings
    from protofleet.coordinator.main import run_coordinator
    from protofleet.deploy.cli import software
    from protofleet.deploy.run_errors import RunError
    from protofleet.protocol.settings import decode_file, read_toml

    settings = decode_file(CoordinatorSettings, options.settings, read_toml(options.settings), options.set)
    if problem := run_coordinator(settings, software(), options.events):
        raise RunError(problem)
    return 0


def add_device(jobs: Jobs) -> None:
    job = jobs.add_parser("device", help="take part in runs with the data of this machine")
    job.add_argument("settings", type=Path, help="TOML, plain or signed by the federation's root")
    job.add_argument(
        "--enrolled",
        default="",
        metavar="DIR",
        help="its root has to have signed them; plain ones are refused",
    )
    job.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    job.set_defaults(command=device)


def device(options: argparse.Namespace) -> int:
    from protofleet.deploy.cli import software
    from protofleet.deploy.run_errors import RunError
    from protofleet.edge_client.given import read_given
    from protofleet.edge_client.main import run_device

    given = read_given(options.settings, options.enrolled, options.set)
    if problem := run_device(given.settings, software(), given.version):
        raise RunError(problem)
    return 0


def add_fleet(jobs: Jobs) -> None:
    job = jobs.add_parser("fleet", help="many simulated devices at once, from a folder for each")
    job.add_argument("folder", type=Path, help="holds <device>/settings.toml")
    job.set_defaults(command=fleet)


def fleet(options: argparse.Namespace) -> int:
    from protofleet.deploy.many import run_many

    run_many(options.folder)
    return 0


def add_health(jobs: Jobs) -> None:
    job = jobs.add_parser(
        "health", help="ask a running coordinator or device how it is; exit code 1: not well"
    )
    job.add_argument("settings", type=Path, nargs="+", help="the TOML file that it runs with; or several")
    job.set_defaults(command=health)


def health(options: argparse.Namespace) -> int:
    from protofleet.deploy.health import health

    found = [health(path) for path in options.settings]
    for path, (_, words) in zip(options.settings, found, strict=True):
        print(f"{path}:\n{words}" if len(found) > 1 else words)
    return 0 if all(well for well, _ in found) else 1


def add_unban(jobs: Jobs) -> None:
    job = jobs.add_parser("unban", help="let a coordinator listen again, before its ban ends, to who flooded")
    job.add_argument("name", nargs="?", default="", help="of the device; without it, say who is banned")
    job.add_argument("--folder", type=Path, required=True, help="of the run, for example runs/demo")
    job.set_defaults(command=unban)


def unban(options: argparse.Namespace) -> int:
    """The coordinator looks once a second; one that does not run finds it when it starts."""
    from protofleet.coordinator.bans import bans_in, lift, words_of
    from protofleet.protocol.settings import SettingsError

    folder = options.folder / "coordinator"
    if not folder.is_dir():
        raise SettingsError(f"{options.folder} is no folder of a run: there is no {folder}")
    banned = bans_in(folder)
    if not options.name:
        lines = [f"{name}: {words_of(ban)}" for name, ban in banned.items()]
        print("\n".join(lines) or f"nobody is banned in {options.folder}")
        return 0
    if options.name not in banned:
        known = ", ".join(banned) or "nobody is"
        raise SettingsError(f"{options.name} is not banned in {options.folder}; banned: {known}")
    lift(folder, options.name)
    print(f"{options.name} is banned no more; its next hello brings it back")
    return 0


def add_keys(jobs: Jobs) -> None:
    job = jobs.add_parser("keys", help="make keys: <name>.key to keep, <name>.pub to hand out")
    job.add_argument("names", nargs="+", help="coordinator, or a device's name")
    job.add_argument("--folder", type=Path, default=Path("keys"))
    job.set_defaults(command=keys)


def keys(options: argparse.Namespace) -> int:
    from protofleet.deploy.keys import new_keys
    from protofleet.protocol.keys import save_public
    from protofleet.protocol.settings import SettingsError
    from protofleet.protocol.topics import valid_name

    for name in options.names:
        path = options.folder / f"{valid_name(name)}.key"
        if path.exists():
            raise SettingsError(f"{path} exists; remove it first if the old key shall be no good any more")
        save_public(options.folder / f"{name}.pub", new_keys(path).public)
        print(f"{path} (keep it here)  {options.folder / f'{name}.pub'} (hand it out)")
    return 0


def add_go_on(jobs: Jobs) -> None:
    job = jobs.add_parser("go-on", help="go on with a run from an older copy of its coordinator's folder")
    job.add_argument("folder", type=Path, help="for example runs/demo; its coordinator must not run")
    job.add_argument(
        "--from-round", type=ROUND, required=True, metavar="N",
        help="the first round that no device has answered: the copy's state counts as that of its beginning, and "
        "what was learned since the copy is lost",
    )  # fmt: skip
    job.set_defaults(command=go_on)


def go_on(options: argparse.Namespace) -> int:
    from protofleet.coordinator.copies import go_on_from

    go_on_from(options.folder / "coordinator", options.from_round)
    print(f"{options.folder} goes on in round {options.from_round} with what this copy knows")
    return 0


def add_report(jobs: Jobs) -> None:
    job = jobs.add_parser("report", help="write runs/<name>/report.html again and print the final table")
    job.add_argument("folder", type=Path, help="for example runs/demo")
    job.set_defaults(command=report)


def report(options: argparse.Namespace) -> int:
    from protofleet.deploy.report import final_table, write_report

    path = write_report(options.folder)
    print(final_table(options.folder))
    print(f"report: {path}")
    return 0


def add_compare(jobs: Jobs) -> None:
    job = jobs.add_parser("compare", help="finished runs side by side, seeds of one experiment in one row")
    job.add_argument("folders", type=Path, nargs="+", help="for example runs/fedavg-s1 runs/fedlsa-s1")
    job.add_argument("--view", default="reports", help="whose accuracy: reports (as each paper), global ...")
    job.add_argument("--baseline", default="", metavar="NAME", help="default: the one that runs fedavg")
    job.add_argument("--share", type=SHARE, default=0.9, help="of its accuracy, to be reached (default: 0.9)")
    job.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables for GitHub")
    job.add_argument("--html", type=Path, metavar="FILE", help="write a page with tables and curves")
    job.set_defaults(command=compare)


def compare(options: argparse.Namespace) -> int:
    from protofleet.deploy.compare import goal_of, read_groups, write
    from protofleet.deploy.compare_page import comparison_page
    from protofleet.deploy.compare_tables import tables

    groups = read_groups(options.folders, options.view)
    shown = tables(groups, goal_of(groups, options.baseline, options.share), options.share)
    print("\n\n".join(table.plain() for table in shown))
    if options.markdown:
        write(options.markdown, "\n".join(table.markdown() for table in shown))
    if options.html:
        write(options.html, comparison_page(groups, shown))
    return 0


def add_lists(jobs: Jobs) -> None:
    job = jobs.add_parser("methods", help="the methods there are; or one, with its readings and settings")
    job.add_argument("name", nargs="?", default="", help="for example fedlsa")
    job.add_argument("--cost", action="store_true", help="what a round of them costs in the papers' settings")
    job.set_defaults(command=methods)
    jobs.add_parser("networks", help="the networks there are").set_defaults(command=networks)
    job = jobs.add_parser(
        "data", help="build or check data, say what is in them, and whether all have the same classes"
    )
    job.add_argument(
        "settings", type=Path, nargs="+",
        help="TOML files of devices, a coordinator, a fleet or an experiment",
    )  # fmt: skip
    job.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    job.set_defaults(command=data)


def methods(options: argparse.Namespace) -> int:
    from protofleet.methods import load, names

    if options.cost:
        from protofleet.deploy.costs import table

        print(table())
        return 0
    if options.name:
        from protofleet.deploy.explain import explanation

        print(explanation(options.name))
        return 0
    for name in names():
        method = load(name)
        print(f"{name:12} {method.reports:9} {method.paper}")
    return 0


def networks(options: argparse.Namespace) -> int:
    from protofleet.methods import nets

    print("\n".join(nets.names()))
    return 0


def data(options: argparse.Namespace) -> int:
    from protofleet.deploy.alike import demand_alike, parties_in
    from protofleet.edge_client.data import load
    from protofleet.protocol.class_names import listed

    parties = [party for path in options.settings for party in parties_in(path, options.set)]
    demand_alike(parties)
    for party in parties:
        called = f"classes: {listed(party.names) or 'not said'}"
        if party.data is None or party.elsewhere:
            print(f"{party.name:16} {party.elsewhere:12} {called}")
            continue
        shard = load(party.data)
        sizes = f"train {len(shard.train.y)}, validation {len(shard.validation.y)}, test {len(shard.test.y)}"
        print(f"{party.name:16} {shard.domain:12} {sizes}; per class {shard.counts().tolist()}; {called}")
    return 0
