"""Write the page of a measurement of leakage, and its table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from protofleet.lab.report.html_page import page, section, table, unfolded
from protofleet.lab.report.leakage_file import LeakageFile, LeakageRow, control_words, interval, named
from protofleet.protocol.security.keyfiles import PUBLIC, write_file

NOT_MEASURED: Final = "not measured"
NO_CONTROL: Final = "none"
HEAD: Final = (
    "attack",
    "on",
    "attacker",
    "device",
    "measure",
    "figure [95 %]",
    "without the upload",
    "control [99 %]",
)
ATTACKERS: Final = (
    ("A0", "one upload alone"),
    ("A1", "all messages of the run, and the protocol: also sent weights, and a network that nobody trains"),
    ("A2", "A1, and samples of the domain that no device has used"),
    ("A3", "A2, and the network of this device, as after the theft of the device"),
)  # fmt: skip
SOURCES: Final = {
    "kept": "the answers that the coordinator has kept. No samples are there, so most attacks have no ground truth",
    "repeated": "the experiment, which was run again in one process",
    "device": "this device's own folder. Nothing was sent",
}
LIMITS: Final = (
    "An attack that finds nothing does not show that an upload is safe: a better attack may exist.",
    "The headline is the worst device, because a mean hides one bad device.",
    "A row is struck out if its control is not where it must be. Its figure then says nothing.",
    "Decoder networks, the inversion of gradients and the bound of information are only shown (--thorough). "
    "An inversion that fails has not found the images; this does not show that they are safe.",
    "SSIM is 1 for equal images, and about 0 for images without a common structure.",
    "The bound of information is loose. FedPall's paper finds less information after noise, mixing and mask. "
    "This order was not reproduced here: a map that can be undone takes no information away.",
    "Membership: AUC 0.5 is chance. The bootstrap draws classes of devices, because samples of a class are alike.",
)


def write_leakage_page(found: LeakageFile, name: str, target: Path) -> Path:
    """Write the page."""
    title = f"{name}: what the answers give away"
    rounds = ", ".join(map(str, found.rounds))
    about = (
        f"Method {found.method}; answers of round {rounds}, from {SOURCES[found.source]}. Strongest attacker tried: "
        f"{found.attacker}."
    )
    content = "".join(
        [
            f"<h1>{escape(title)}</h1><p>{escape(about)}</p>{_headline(found)}",
            _figures("The worst device of each attack", found.worst),
            _figures("All devices together", found.together),
            _devices(found),
            _missing(found),
            _explanations(),
        ]
    )
    write_file(target, page(title, content, width="wide").encode(), PUBLIC, durable=False)
    return target


def _headline(found: LeakageFile) -> str:
    row = found.headline
    if row is None:
        reason = (
            "no ground truth: not measured"
            if found.source == "kept"
            else "no membership attack gave a figure"
        )
        return f"<p>Membership of a sample in a device's data: {escape(reason)}.</p>"
    words = (
        f"Membership of a sample in a device's data: AUC {interval(row)} on {row.device}, the worst device, for "
        f"attacker {row.attacker} ({row.attack}). 0.5 is chance."
    )
    return f'<p class="danger">{escape(words)}</p>' if (row.low or 0) > 0.6 else f"<p>{escape(words)}</p>"


def _figures(title: str, rows: Sequence[LeakageRow]) -> str:
    if not rows:
        return ""
    return section(title, _table(title, rows))


def _table(caption: str, rows: Sequence[LeakageRow]) -> str:
    cells = [[*cells_of(row), row.note or NO_CONTROL] for row in rows]
    struck = [place for place, row in enumerate(rows) if not row.sound]
    left = (0, 1, 2, 3, 4, 8)
    return table(caption, (*HEAD, "note"), cells, left=left, struck=struck)


def cells_of(row: LeakageRow) -> list[str]:
    """Return the cells of a row. No cell is blank: a figure that is not there has a reason."""
    return [
        row.attack, row.kind, row.attacker, row.device or "all", row.measure or NOT_MEASURED,
        interval(row) or row.unmeasured or NOT_MEASURED,
        NO_CONTROL if row.baseline is None else f"{row.baseline:.3g}", control_words(row) or NO_CONTROL,
    ]  # fmt: skip


def _devices(found: LeakageFile) -> str:
    names = sorted({row.device for row in found.devices})
    parts = [unfolded(name, _table(f"Figures of {name}", named(found.devices, name))) for name in names]
    return section("Each device", *parts) if parts else ""


def _missing(found: LeakageFile) -> str:
    """Return a table of the attacks without a figure; devices with the same reason share a row."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in found.missing:
        groups.setdefault((row.attack, row.kind, row.unmeasured), []).append(row.device)
    cells = [[attack, kind, ", ".join(devices), reason] for (attack, kind, reason), devices in groups.items()]
    if not cells:
        return ""
    return section(
        "Not measured",
        table("Attacks without a figure", ("attack", "on", "devices", "reason"), cells, words=True),
    )


def _explanations() -> str:
    attackers = table("The attackers", ("attacker", "knows"), ATTACKERS, words=True)
    limits = "".join(f"<li>{escape(line)}</li>" for line in LIMITS)
    return section("How to read this page", attackers, f"<ul>{limits}</ul>")


def leakage_text(found: LeakageFile) -> str:
    """Return the worst device of each attack as a table for the terminal."""
    rows = [["attack", "on", "by", "device", "figure", "without", "control"]]
    for row in [*found.worst, *found.together]:
        cells = cells_of(row)
        mark = "" if row.sound else " (struck out: the control is not at chance)"
        rows.append([*cells[:4], f"{row.measure} {cells[5]}{mark}", cells[6], cells[7]])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    reasons = dict.fromkeys(f"{row.attack} on {row.kind}: {row.unmeasured}" for row in found.missing)
    return "\n".join([*lines, *reasons])
