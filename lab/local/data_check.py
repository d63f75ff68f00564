"""Check before a run starts that the data exist and are enough for each device.

Without this check, each of a hundred devices would report the same error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shards, missing_folder
from protofleet.edge_client.data.share_sizes import ShareSize, most_parts, problem_of_division, share_sizes
from protofleet.edge_client.public_images import images_of
from protofleet.lab.local.experiment import Experiment
from protofleet.methods.contract.public import DRAWN, HASHED, hashed
from protofleet.protocol.settings.reader import SettingsError


def require_data(experiments: Iterable[Experiment]) -> None:
    """Raise DataError with a list of all missing folders, or SettingsError if a device would have too few images."""
    missing: dict[Path, str] = {}
    wanted = list(experiments)
    for experiment in wanted:
        for settings in experiment.shards.values():
            if (folder := missing_folder(settings)) is not None:
                missing[folder.absolute()] = settings.source
    if missing:
        listed = ", ".join(f"{folder} ({source})" for folder, source in missing.items())
        raise DataError(
            f"these folders of data are missing: {listed}. docs/data.md describes their content and how to get it; "
            "to use other folders, set data.root, or set root in a row of [domains]"
        )
    require_enough(wanted)


def require_enough(experiments: Iterable[Experiment]) -> None:
    """Raise SettingsError if a device would have too few images.

    Only labels are read. If several experiments divide the same images in the same way, the division is
    checked once.
    """
    shards, enough = Shards(), set[DataSettings]()
    for experiment in experiments:
        for settings in experiment.shards.values():
            if settings.is_plugin or (whole := replace(settings, part=0)) in enough:
                continue
            if problem := problem_of_division(whole, shards):
                raise SettingsError(too_many(experiment, whole, problem, shards))
            enough.add(whole)


def validation_images(experiment: Experiment) -> int | None:
    """Return the number of validation images of all devices together.

    Return None if the data are no longer on this machine, or if a function of the user makes the data.
    """
    if any(settings.is_plugin for settings in experiment.shards.values()):
        return None
    shards, sizes = Shards(), dict[DataSettings, list[ShareSize]]()
    try:
        for settings in experiment.shards.values():
            whole = replace(settings, part=0)
            sizes[whole] = sizes.get(whole) or share_sizes(whole, shards)
    except DataError:
        return None
    return sum(sizes[replace(one, part=0)][one.part].validation for one in experiment.shards.values())


def too_many(experiment: Experiment, settings: DataSettings, problem: str, shards: Shards) -> str:
    """Return a message that there are too few samples for the devices.

    The message has the largest number of devices for which the samples are enough, if there is such a number.
    """
    fleet, domain = experiment.devices, settings.domain or settings.source
    key = (
        f"devices.clients.{domain}"
        if fleet.clients
        else f"devices.{'count' if fleet.count else 'per_domain'}"
    )
    way_out = "take more samples, or a smaller data.validation"
    if most := most_parts(settings, shards):
        way_out = f"the largest {key} that works is {most}"
    return f"{key} is {settings.parts}, and the samples of {domain} are too few for so many: {problem}; {way_out}"


def require_public_images(experiment: Experiment) -> None:
    """Raise SettingsError if the hash of the public images differs from the hash in the run's recorded settings."""
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
