"""Make the section about bytes by direction, kind and round, compared with the bytes of FedAvg."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from protofleet.lab.report.drawing.charts import Bar, bar_chart
from protofleet.lab.report.drawing.palette import COLOURS, GREY, INK
from protofleet.lab.report.finished_run import FinishedRun
from protofleet.lab.report.html_page import section, table
from protofleet.lab.report.numbers import NONE, one_place
from protofleet.protocol.link.meter import human_bytes

KIND_COLOURS: Final = {
    "weights": COLOURS[0], "anchors": COLOURS[1], "prototypes": COLOURS[2], "classifier": COLOURS[3],
    "amplifier": COLOURS[4], "features": COLOURS[5], "labels": COLOURS[7], "counts": COLOURS[7],
    "control": GREY,
}  # fmt: skip
WORDS: Final = {"up": "devices to coordinator", "down": "coordinator to devices"}
FEDAVG: Final = "FedAvg"
NOTE: Final = (
    "Every byte of every packet, by the array that it carried, as the method declares them; control is all else: "
    "headers, tables, signatures, topics, and confusion matrices of the last evaluation. "
    "A broadcast crosses once for the whole cohort. Outlined: what FedAvg would have sent, the network's weights."
)


def bytes_section(run: FinishedRun) -> str:
    pictures = [f"<h3>{way}: {words}</h3>{bytes_chart(run, way)}" for way, words in WORDS.items()]
    return section("Bytes per round", *pictures, bytes_table(run.summary), note=NOTE)


def bytes_chart(run: FinishedRun, direction: str) -> str:
    training = [line for line in run.rounds if line["kind"] == "training"]
    used = {kind for line in training for kind in line["wire"].get(direction, {})}
    colours = colours_of(used) | {FEDAVG: INK}
    bars = []
    for line in training:
        parts = sorted(line["wire"].get(direction, {}).items())
        bars.append(Bar(line["round"] - 0.16, parts, 0.42))
        fedavg = (FEDAVG, line["fedavg"].get(direction, 0))
        bars.append(Bar(line["round"] + 0.22, [fedavg], 0.3, outlined=True))
    return bar_chart(bars, colours, human_bytes, "round", f"bytes {direction} by kind and round")


def colours_of(kinds: Collection[str]) -> dict[str, str]:
    """Return the colour of each kind of bytes.

    The common kinds always have the same colours. Other kinds get the remaining colours, in the order of
    their names.
    """
    usual = {kind: colour for kind, colour in KIND_COLOURS.items() if kind in kinds}
    left = [colour for colour in COLOURS if colour not in usual.values()] or list(COLOURS)
    own = {kind: left[i % len(left)] for i, kind in enumerate(sorted(set(kinds) - KIND_COLOURS.keys()))}
    return own | usual


def bytes_table(summary: Mapping[str, Any]) -> str:
    rows, uncoded = [], summary.get("uncoded", {})
    for direction in WORDS:
        before = uncoded.get(direction, {})
        for kind in sorted(summary["wire"][direction].keys() | before.keys()):
            wire = summary["wire"][direction].get(kind, 0)
            payload = summary["payload"][direction].get(kind, 0)
            coded = before_coding(before.get(kind, 0), payload) if uncoded else []
            rows.append([f"{direction}: {kind}", f"{payload:,}", *coded, f"{wire:,}"])
    coded = ["before the codec", "factor"] if uncoded else []
    head = ["what crossed", "tensor bytes", *coded, "bytes on the wire"]
    return table("Bytes of the whole run", head, rows)


def before_coding(uncoded: int, payload: int) -> list[str]:
    """Return the bytes before coding, and these bytes divided by the bytes after coding."""
    return [f"{uncoded:,}", one_place(uncoded / payload) if uncoded and payload else NONE]
