"""Warn if a run was tested on so few images that the accuracy is not reliable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from protofleet.lab.report.finished_run import FinishedRun
from protofleet.protocol.settings.reader import SettingsError, read_toml

FEWEST: Final = 20  # With 20 images, each image changes the accuracy by 5 points.


def few_test_images(run: FinishedRun) -> str:
    """Return a sentence about the domains with too few test images.

    Return "" if there are no such domains, or if no device has counted its images.
    """
    found = [line["confusion"] for line in run.rounds if line.get("confusion")]
    if not found:
        return ""
    shared = _devices_of_one_test(run)
    tested = {
        domain: sum(map(sum, matrix)) // shared.get(domain, 1) for domain, matrix in sorted(found[-1].items())
    }
    if not (few := {domain: number for domain, number in tested.items() if number < FEWEST}):
        return ""
    listed = ", ".join(f"{domain} {number}" for domain, number in few.items())
    return f"tested on few samples, and one more that is right changes much: {listed}"


def _devices_of_one_test(run: FinishedRun) -> Mapping[str, int]:
    """Return for each domain the number of devices that are tested on the same images.

    Each of these devices counts all of these images, so the sum over devices counts each image several times.
    """
    try:
        data: Mapping[str, Any] = read_toml(run.folder / "experiment.toml").get("data", {})
    except SettingsError:
        return {}
    if data.get("own_test") is not None or data.get("split") == "dirichlet":
        return {}
    found = dict[str, int]()
    for device in run.summary["devices"].values():
        domain = device.get("domain", "")
        found[domain] = found.get(domain, 0) + 1
    return found
