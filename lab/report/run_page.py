"""Write runs/<name>/report.html, one page with a whole run, and make the table of results for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from protofleet.lab.report.finished_run import FinishedRun, read_run, require_keys
from protofleet.lab.report.html_page import page
from protofleet.lab.report.numbers import percent
from protofleet.lab.report.sections.accuracy import VIEWS, accuracy_section, loss_section
from protofleet.lab.report.sections.anchor_margins import anchor_margins_section
from protofleet.lab.report.sections.bytes import bytes_section
from protofleet.lab.report.sections.confusion import confusion_section
from protofleet.lab.report.sections.data import run_section
from protofleet.lab.report.sections.energy import energy_section
from protofleet.lab.report.sections.environment import environment_section, settings_section
from protofleet.lab.report.sections.features import feature_sections
from protofleet.lab.report.sections.left_out_classes import left_out_classes, left_out_devices
from protofleet.lab.report.sections.own_metrics import own_metrics_section
from protofleet.lab.report.sections.participation import participation_section
from protofleet.lab.report.sections.privacy import privacy_claim
from protofleet.lab.report.sections.small_tests import few_test_images
from protofleet.lab.report.virtual_runs import virtual_notice, virtual_words
from protofleet.protocol.link.meter import human_bytes
from protofleet.protocol.security.keyfiles import PUBLIC, write_file

SECURITY = {
    "sealed": "signed, and sealed from end to end: no broker can read them",
    "centralised": "none: this is no federation, all devices' data were in one process",
    "off": "signed, but NOT sealed: the operator of the broker could read them",
}
REQUIRED_KEYS = (
    *("name", "method", "paper", "network", "reports", "rounds", "seed", "devices", "seconds"),
    *("payload", "wire", "fedavg", "accuracy", "broker", "security"),
)


# Functions that make the sections of the page, from top to bottom. If there is nothing to show, they return "".
SECTIONS: Final[Sequence[Callable[[FinishedRun], str]]] = (
    accuracy_section,
    loss_section,
    own_metrics_section,
    confusion_section,
    bytes_section,
    energy_section,
    run_section,
    anchor_margins_section,
    lambda run: feature_sections(run.folder, run.summary.get("rounds_done", run.summary["rounds"])),
    participation_section,
    environment_section,
    settings_section,
)


def write_report(folder: Path) -> Path:
    run = _read(folder)
    summary, target = run.summary, folder / "report.html"
    notices = (
        virtual_notice(summary) + outcome_notice(summary) + damage_notice(run) + security_notice(summary)
    )
    notices += "".join(f"<p>{escape(line)}</p>" for line in robust_words(summary)) + small_test_notice(run)
    left_out = [*left_out_classes(run), *left_out_devices(run), *privacy_claim(run)]
    notices += "".join(f"<p>{escape(line[0].upper() + line[1:])}.</p>" for line in left_out)
    sections = "".join(section(run) for section in SECTIONS)
    title = f"{summary['name']}: {summary['method']}"
    text = page(title, f"<h1>{escape(title)}</h1>{notices}{summary_cards(summary)}{sections}")
    write_file(
        target, text.encode(), PUBLIC, durable=False
    )  # The mode PUBLIC lets other users read the page.
    return target


def _read(folder: Path) -> FinishedRun:
    run = read_run(folder)
    require_keys(folder, run.summary, REQUIRED_KEYS)
    return run


def damage_notice(run: FinishedRun) -> str:
    return f'<p class="danger">{escape(run.faults)}.</p>' if run.faults else ""


def small_test_notice(run: FinishedRun) -> str:
    words = few_test_images(run)
    return f'<p class="danger">{escape(words[0].upper() + words[1:])}.</p>' if words else ""


def outcome_notice(summary: Mapping[str, Any]) -> str:
    """Return a notice of how the run has ended. The notice is red if the run has not finished well.

    Summaries of earlier versions do not say how the run has ended.
    """
    text = summary.get("ended", "finished")
    if text == "finished":
        return f"<p>{escape(stopped_words(summary))}</p>" if summary.get("stopped") else ""
    words = text.replace("diverged: ", "come to nothing: ", 1)
    return f'<p class="danger">This run has {escape(words)}.</p>'


def stopped_words(summary: Mapping[str, Any]) -> str:
    """Return the reason why the rule policy.stop has ended the run."""
    done, planned = summary["rounds_done"], summary["rounds"]
    return f"This run was stopped after {done} of {planned} rounds: {summary['stopped']}."


def security_notice(summary: Mapping[str, Any]) -> str:
    """Return a notice on security. The notice is red if the messages of the run were not sealed.

    A run of an earlier version signed its messages but did not seal them.
    """
    style = "" if summary["security"] == "sealed" else ' class="danger"'
    words = f"<p{style}>Messages of this run were {escape(describe_security(summary))}.</p>"
    sums = "".join(f"<p>{line}</p>" for line in sum_words(summary))
    return words + sums + keep_notice(summary.get("keep", ()))


def sum_words(summary: Mapping[str, Any]) -> list[str]:
    """Return a line which says that the coordinator got only sums, or no line for other runs."""
    secagg = summary.get("secagg", {})
    if not secagg:
        return []
    figures = {
        "off": "Accuracy and loss of single devices were not sent.",
        "each": "Accuracy and loss of single devices were sent in addition to the sum.",
    }
    return [
        f"The coordinator got only the sums of at least {int(secagg['least'])} updates, in numbers of "
        f"{int(secagg['bits'])} bits. {figures.get(secagg['metrics'], '')}"
    ]


def keep_notice(keep: Sequence[int | str]) -> str:
    """Return a notice of the rounds whose answers the coordinator has kept, or "" for other runs."""
    if not keep:
        return ""
    rounds = " and ".join("the last round" if one == "last" else f"round {one}" for one in keep)
    return f"<p>The coordinator kept the answers of {escape(rounds)} (keep.answers).</p>"


def robust_words(summary: Mapping[str, Any]) -> list[str]:
    """Return a line on the rules that replaced the mean over the devices, or no line if there were none."""
    rules = [f"{name} by {rule}" for name, rule in sorted(summary.get("robust", {}).items())]
    return [f"Rules of policy.robust replaced the mean of {' and of '.join(rules)}."] if rules else []


def describe_security(summary: Mapping[str, Any]) -> str:
    return SECURITY.get(summary["security"], SECURITY["off"])


def summary_cards(summary: Mapping[str, Any]) -> str:
    accuracy = summary["accuracy"]
    final, start = accuracy["final"].get("mean"), accuracy["start"].get("mean")
    payload, wire, fedavg = traffic(summary)
    total = sum(payload.values())
    cards = [
        ("mean accuracy", percent(final), f"from {percent(start)} at its start" if start is not None else ""),
        ("tensors sent", human_bytes(total), up_and_down(payload)),
        (
            "on the wire",
            human_bytes(wire),
            f"{wire / total:.4f} of the tensors" if total else "no tensor crossed",
        ),
        ("of FedAvg", f"{total / fedavg:.1%}" if fedavg else "-", "same network, one broadcast a round too"),
        (
            "time",
            f"{summary['seconds']:.0f} s",
            f"{rounds_words(summary)}, {len(summary['devices'])} devices",
        ),
    ]
    elements = "".join(
        f'<div class="card"><span>{name}</span><b>{escape(value)}</b><small>{escape(text)}</small></div>'
        for name, value, text in cards
    )
    model = f"network {summary['network']}{rules_words(summary)}"
    model += origin_words(summary) + generation_words(summary)
    about = f"{summary['paper']}; {model}; broker {summary['broker']}; seed {summary['seed']}"
    return f'<p class="about">{escape(about)}</p><div class="cards">{elements}</div>'


def rounds_words(summary: Mapping[str, Any]) -> str:
    """Return the number of rounds in words.

    If a run has diverged, it has done fewer rounds than planned. Summaries of earlier versions do not say how
    many rounds were done.
    """
    planned, done = summary["rounds"], summary.get("rounds_done", summary["rounds"])
    return f"{planned} rounds" if done == planned else f"{done} of {planned} rounds"


def origin_words(summary: Mapping[str, Any]) -> str:
    """Return the run and the round whose state the run has started with, in words; "" if there is none."""
    origin = summary.get("origin")
    return f"; started with the state of {origin['run']} after round {origin['round']}" if origin else ""


def generation_words(summary: Mapping[str, Any]) -> str:
    """Return words about a run that has gone on behind its devices; "" for any other run."""
    generation = summary.get("generation", 1)
    words = "; went on behind its devices after a backup was put back, so training since the backup is lost"
    return f"{words} (generation {generation})" if generation > 1 else ""


def rules_words(summary: Mapping[str, Any]) -> str:
    """Return the rule of prediction in words. A summary of an earlier version has no such rule."""
    rules = dict(summary.get("rules", {}))
    own = rules.pop("predict", "")
    others = "; ".join(f"{way} by {words}" for way, words in rules.items())
    return f", predicts by {own}{f' (measured beside it: {others})' if others else ''}" if own else ""


def traffic(summary: Mapping[str, Any]) -> tuple[Mapping[str, int], int, int]:
    """Return the bytes of arrays by direction, the bytes on the wire, and the bytes that FedAvg would have sent."""
    payload = {direction: sum(kinds.values()) for direction, kinds in summary["payload"].items()}
    wire = sum(sum(kinds.values()) for kinds in summary["wire"].values())
    return payload, wire, sum(summary["fedavg"].values())


def up_and_down(sizes: Mapping[str, int]) -> str:
    return f"up {human_bytes(sizes['up'])}, down {human_bytes(sizes['down'])}"


def final_table(folder: Path) -> str:
    """Return the results of a run as a few lines of text."""
    run = _read(folder)
    summary = run.summary
    accuracy = summary["accuracy"]
    start, final, best = accuracy["start"], accuracy["final"], accuracy["best_by_validation"]
    rows = [f"{'domain':14}{'start':>9}{'last':>9}{'best by validation':>21}"]
    for name in [*sorted(n for n in final if n != "mean"), "mean"]:
        cells = percent(start.get(name)), percent(final.get(name)), percent(best.get(name))
        rows.append(f"{name:14}{cells[0]:>9}{cells[1]:>9}{cells[2]:>21}")
    payload, wire, fedavg = traffic(summary)
    sent = f"tensors {up_and_down(payload)}; on the wire {human_bytes(wire)}"
    rows.append(f"{sent}; FedAvg would have sent {human_bytes(fedavg)}" if fedavg else sent)
    rows.append(f"{VIEWS[summary['reports']]}; messages {describe_security(summary)}")
    rows += [*virtual_words(summary), *sum_words(summary), *robust_words(summary)]
    rows += [stopped_words(summary)] if summary.get("stopped") else []
    rows += [words] if (words := few_test_images(run)) else []
    rows += [*left_out_classes(run), *left_out_devices(run), *privacy_claim(run)]
    rows += [run.faults] if run.faults else []
    return "\n".join(rows)
