"""Whether there are data at all, before anything starts: a run of a hundred devices need not find out one by one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from protofleet.deploy.local.experiment import Experiment
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.shard import Shards, missing_folder
from protofleet.edge_client.public_images import images_of
from protofleet.methods.contract.public import DRAWN, HASHED, hashed


def require_data(experiments: Iterable[Experiment]) -> None:
    """DataError with all the folders that are missing."""
    missing: dict[Path, str] = {}
    for experiment in experiments:
        for settings in experiment.shards.values():
            if (folder := missing_folder(settings)) is not None:
                missing[folder] = settings.source
    if missing:
        listed = ", ".join(f"{folder} ({source})" for folder, source in missing.items())
        raise DataError(
            f"no data are there: {listed}. docs/data.md says what each folder must hold and where it comes from; "
            "data.root, or root of a row of [domains], names another one"
        )


def require_public_images(experiment: Experiment) -> None:
    """SettingsError where they are not the ones whose hash the run has."""
    chosen, own = experiment.public, experiment.data
    if chosen is None or not chosen.sha256:
        return
    if chosen.source == DRAWN:
        chosen.check(chosen.draw(HASHED))
    else:
        root = own.root if own.source == chosen.source else ""
        shape = hashed(chosen.source, experiment.plan.input_shape)
        scale = own.scale if own.source == chosen.source else None
        chosen.check(images_of(chosen, root, Shards(), shape, scale))
