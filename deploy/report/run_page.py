"""runs/<name>/report.html: a whole run on one self-contained page, and its table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from protofleet.coordinator.observe.curves import curve
from protofleet.deploy.report.charts import COLOURS, Bar, Line, bar_chart, line_chart
from protofleet.deploy.report.data.section import run_section
from protofleet.deploy.report.energy.section import energy_section
from protofleet.deploy.report.feature_sections import feature_sections
from protofleet.deploy.report.finished_run import FinishedRun, Rounds, read_run, require_keys
from protofleet.deploy.report.html_page import page, table
from protofleet.deploy.report.numbers import percent
from protofleet.protocol.link.meter import human_bytes
from protofleet.protocol.security.keyfiles import PUBLIC, write_file

KIND_COLOURS = {
    "weights": COLOURS[0], "anchors": COLOURS[1], "prototypes": COLOURS[2], "classifier": COLOURS[3],
    "amplifier": COLOURS[4], "features": COLOURS[5], "labels": COLOURS[7], "counts": COLOURS[7],
    "control": COLOURS[6],
}  # fmt: skip
VIEWS = {
    "global": "the global model, on every domain's own test images",
    "personal": "each device's own model, on its own domain's test images",
}


SECURITY = {
    "sealed": "signed, and sealed from end to end: no broker can read them",
    "centralised": "none: this is no federation, all devices' data were in one process",
    "off": "signed, but NOT sealed: whoever runs the broker could read them",
}
REQUIRED_KEYS = (
    *("name", "method", "paper", "network", "reports", "rounds", "seed", "devices", "seconds"),
    *("payload", "wire", "fedavg", "accuracy", "broker", "security"),
)


def write_report(folder: Path) -> Path:
    run = _read(folder)
    rounds, summary = run.rounds, run.summary
    target = folder / "report.html"
    settings = (
        (folder / "experiment.toml").read_text(errors="replace")
        if (folder / "experiment.toml").exists()
        else ""
    )
    sections = [
        summary_cards(summary),
        accuracy_section(rounds, summary),
        bytes_section(rounds, summary),
        energy_section(rounds, summary),
        run_section(folder),
        margins_section(rounds),
        feature_sections(folder, summary["rounds"]),
        participation_section(rounds),
        f"<section><h2>Settings</h2><pre>{escape(settings)}</pre></section>" if settings else "",
    ]
    title = f"{summary['name']}: {summary['method']}"
    notices = outcome_notice(summary) + damage_notice(run) + security_notice(summary)
    text = page(title, f"<h1>{escape(title)}</h1>{notices}{''.join(sections)}")
    write_file(target, text.encode(), PUBLIC, durable=False)  # others may read it
    return target


def _read(folder: Path) -> FinishedRun:
    run = read_run(folder)
    require_keys(folder, run.summary, REQUIRED_KEYS)
    return run


def damage_notice(run: FinishedRun) -> str:
    return f'<p class="danger">{escape(run.faults)}.</p>' if run.faults else ""


def outcome_notice(summary: Mapping[str, Any]) -> str:
    """In red where the run has not finished well; summaries of earlier versions do not say."""
    text = summary.get("ended", "finished")
    return "" if text == "finished" else f'<p class="danger">This run has {escape(text)}.</p>'


def security_notice(summary: Mapping[str, Any]) -> str:
    """In red where a run was not sealed; a run of an earlier version was only signed."""
    style = "" if summary["security"] == "sealed" else ' class="danger"'
    return f"<p{style}>Messages of this run were {escape(describe_security(summary))}.</p>"


def describe_security(summary: Mapping[str, Any]) -> str:
    return SECURITY.get(summary["security"], SECURITY["off"])


def summary_cards(summary: Mapping[str, Any]) -> str:
    accuracy = summary["accuracy"]
    final, start = accuracy["final"].get("mean"), accuracy["start"].get("mean")
    payload, wire, fedavg = traffic(summary)
    total = sum(payload.values())
    cards = [
        ("mean accuracy", percent(final), f"from {percent(start)} at its start"),
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
            f"{summary['rounds']} rounds, {len(summary['devices'])} devices",
        ),
    ]
    elements = "".join(
        f'<div class="card"><span>{name}</span><b>{escape(value)}</b><small>{escape(text)}</small></div>'
        for name, value, text in cards
    )
    about = f"{summary['paper']}; network {summary['network']}; broker {summary['broker']}; seed {summary['seed']}"
    return f'<p class="about">{escape(about)}</p><div class="cards">{elements}</div>'


def accuracy_section(rounds: Rounds, summary: Mapping[str, Any]) -> str:
    view = summary["reports"]
    points = curve(rounds, view, "accuracy")
    if not points:
        return ""
    first = 0 if view == "global" else 1
    series = []
    for i, domain in enumerate(sorted(points[-1])):
        data = [(first + r, p[domain]) for r, p in enumerate(points) if domain in p]
        series.append(Line(domain, data, COLOURS[i % len(COLOURS)]))
    means = [(first + r, sum(p.values()) / len(p)) for r, p in enumerate(points)]
    series.append(Line("mean", means, "var(--ink)", bold=True))
    picture = line_chart(series, percent, "rounds of training", "accuracy by domain over rounds")
    text = f"Shown: {VIEWS[view]}. The point at r is the model after r rounds."
    tables = accuracy_table(summary) + views_table(summary)
    return f"<section><h2>Accuracy by domain</h2><p>{text}</p>{picture}{tables}</section>"


def accuracy_table(summary: Mapping[str, Any]) -> str:
    accuracy = summary["accuracy"]
    start, final, best = accuracy["start"], accuracy["final"], accuracy["best_by_validation"]
    rows = [
        [name, percent(start.get(name)), percent(final.get(name)), percent(best.get(name))]
        for name in [*sorted(n for n in final if n != "mean"), "mean"]
    ]
    point = f"best by validation (point {best['point']})" if "point" in best else "best by validation"
    return table(["domain", "start", "last round", point], rows)


def views_table(summary: Mapping[str, Any]) -> str:
    """Where more views were measured than the one that the paper reports."""
    views = summary.get("views", {})
    if len(views) < 2:
        return ""
    rows = [
        [
            view + (" (reported)" if view == summary["reports"] else ""), percent(found["final"].get("mean")),
            percent(found["best_by_validation"].get("mean")),
        ]
        for view, found in sorted(views.items())
    ]  # fmt: skip
    text = "A word after global or personal is another way to predict with that model."
    return (
        f"<h3>by all views</h3>{table(['view', 'last round, mean', 'best by validation'], rows)}<p>{text}</p>"
    )


def bytes_section(rounds: Rounds, summary: Mapping[str, Any]) -> str:
    training = [line for line in rounds if line["kind"] == "training"]
    used = {kind for line in training for kinds in line["wire"].values() for kind in kinds}
    colours = {kind: KIND_COLOURS[kind] for kind in KIND_COLOURS if kind in used} | {"FedAvg": "#7F7F7F"}
    pictures = []
    for direction, text in (("up", "devices to coordinator"), ("down", "coordinator to devices")):
        elements = []
        for line in training:
            parts = sorted(line["wire"].get(direction, {}).items())
            elements.append(Bar(line["round"] - 0.16, parts, 0.42))
            elements.append(
                Bar(line["round"] + 0.22, [("FedAvg", line["fedavg"].get(direction, 0))], 0.3, outlined=True)
            )
        picture = bar_chart(elements, colours, human_bytes, "round", f"bytes {direction} by kind and round")
        pictures.append(f"<h3>{direction}: {text}</h3>{picture}")
    text = (
        "Every byte of every packet, by what it carried; control is headers, tables, signatures and topics. "
        "A broadcast crosses once for the whole cohort. Outlined: what FedAvg would have sent, the network's weights."
    )
    return (
        f"<section><h2>Bytes per round</h2><p>{text}</p>{''.join(pictures)}{bytes_table(summary)}</section>"
    )


def bytes_table(summary: Mapping[str, Any]) -> str:
    rows = []
    for direction in ("up", "down"):
        for kind, wire in sorted(summary["wire"][direction].items()):
            payload = summary["payload"][direction].get(kind, 0)
            rows.append([direction, kind, f"{payload:,}", f"{wire:,}"])
    return table(["direction", "kind", "tensor bytes", "bytes on the wire"], rows)


def margins_section(rounds: Rounds) -> str:
    found = [(line["round"], line["figures"]) for line in rounds if "margin.mean" in line["figures"]]
    if len(found) < 2:
        return ""
    names = sorted({name for _, figures in found for name in figures if name.startswith("margin.")})
    series = []
    for i, name in enumerate(n for n in names if n != "margin.mean"):
        data = [(r, f[name]) for r, f in found if name in f]
        series.append(
            Line(f"class {name.removeprefix('margin.')}", data, COLOURS[i % len(COLOURS)], labelled=False)
        )
    series.append(Line("mean", [(r, f["margin.mean"]) for r, f in found], "var(--ink)", bold=True))
    text = "Distance from each class's anchor to its nearest other anchor: thin lines are classes."
    values = [value for line in series for _, value in line.points]
    places = 2 if max(values) - min(values) > 0.1 else 4
    picture = line_chart(
        series, lambda v: f"{v:.{places}f}", "round", "margins between anchors over rounds", from_zero=False
    )
    return f"<section><h2>Margins between anchors</h2><p>{text}</p>{picture}</section>"


def participation_section(rounds: Rounds) -> str:
    rows = []
    for line in rounds:
        asked = {device for phase in line["phases"] for device in phase["asked"]}
        dropped = "; ".join(f"{device}: {why}" for device, why in line["dropped"].items())
        aside = "; ".join(f"{device}: {why}" for device, why in line.get("aside", {}).items())
        phases = ", ".join(f"{p['phase']} {p['seconds']:.1f} s" for p in line["phases"])
        rows.append([
            str(line["round"]), f"{len(line['participants'])} of {len(asked)}", phases,
            ", ".join(line["late"]) or "-", dropped or "-", aside or "-",
        ])  # fmt: skip
    heads = ["round", "answered", "phases", "late", "refused", "put aside"]
    return f"<section><h2>Rounds</h2>{table(heads, rows)}</section>"


def traffic(summary: Mapping[str, Any]) -> tuple[Mapping[str, int], int, int]:
    """Bytes of a run: of its tensors by direction, on the wire, and what FedAvg would have sent."""
    payload = {direction: sum(kinds.values()) for direction, kinds in summary["payload"].items()}
    wire = sum(sum(kinds.values()) for kinds in summary["wire"].values())
    return payload, wire, sum(summary["fedavg"].values())


def up_and_down(sizes: Mapping[str, int]) -> str:
    return f"up {human_bytes(sizes['up'])}, down {human_bytes(sizes['down'])}"


def final_table(folder: Path) -> str:
    """The results in a few lines of text."""
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
    rows.append(f"{sent}; FedAvg would have sent {human_bytes(fedavg)}")
    rows.append(f"{VIEWS[summary['reports']]}; messages {describe_security(summary)}")
    rows += [run.faults] if run.faults else []
    return "\n".join(rows)
