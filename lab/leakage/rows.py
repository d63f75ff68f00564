"""Findings as rows of the file leakage.json."""

from __future__ import annotations

import math
from collections.abc import Iterable

from protofleet.lab.leakage.finding import Finding
from protofleet.lab.leakage.measure import Measured
from protofleet.lab.leakage.observed import Observed
from protofleet.lab.report.leakage_file import LeakageFile, LeakageRow

DECIMALS = 5


def file_of(observed: Observed, measured: Measured, number: int | None = None) -> LeakageFile:
    """Return the contents of leakage.json; `number` is the round if only one was measured."""
    rounds = tuple(sorted({one.number for one in observed.exchanges})) if number is None else (number,)
    return LeakageFile(
        observed.plan.method, observed.source, measured.query.attacker, rounds, rows_of(measured.worst),
        rows_of(measured.pooled), rows_of(measured.findings), rows_of(measured.missing),
    )  # fmt: skip


def rows_of(findings: Iterable[Finding]) -> tuple[LeakageRow, ...]:
    return tuple(map(row_of, findings))


def row_of(one: Finding) -> LeakageRow:
    """Return the finding as a row; a number that was not measured becomes None."""
    figure, control = one.figure, one.control
    return LeakageRow(
        one.attack, one.kind, one.measure, one.attacker, one.device, _number(figure.value),
        _number(figure.low), _number(figure.high), _number(one.baseline), _number(control.value),
        _number(control.low), _number(control.high), one.control_name, one.sound, one.gates, one.note, one.unmeasured,
    )  # fmt: skip


def _number(value: float) -> float | None:
    return round(value, DECIMALS) if math.isfinite(value) else None
