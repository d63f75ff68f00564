"""Say in the report of a run with `[dp]` what may be claimed, and how much of the budget was used."""

from __future__ import annotations

from protofleet.lab.report.finished_run import FinishedRun


def privacy_claim(run: FinishedRun) -> list[str]:
    """Return a line with the claim and the largest epsilon of a device; [] for a run without dp."""
    dp = run.summary.get("privacy") or {}
    if not dp:
        return []
    unit = run.summary["privacy_unit"]
    return [
        f"differential privacy for each {unit}: epsilon {dp['spent']:.4g} of {dp['epsilon']:g} was used at delta "
        f"{dp['delta']:g}, with dp.clip = {dp['clip']:g} (docs/dp.md)"
    ]
