"""Read the public samples of a run, which are the same on all devices, from a data source."""

from __future__ import annotations

import numpy as np

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.scaling import Scale
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shards
from protofleet.edge_client.data.stable_random import StableRandom
from protofleet.methods.contract.plan import Plan, PublicImages
from protofleet.methods.contract.public import DRAWN, PublicSamples, PublicSet
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.settings.reader import SettingsError


def public_images(plan: Plan, own: DataSettings, shards: Shards) -> PublicImages | None:
    """Return the function that gives `Plan.client_half` the public samples of a data source.

    Return None if the plan has no public samples from a data source. `own` are the settings of the device's own data.
    If the own data are from the same source, the public samples use the same folder and scale.
    """
    if plan.public is None or plan.public.source == DRAWN:
        return None
    chosen = plan.public
    root = own.root if own.source == chosen.source else ""
    scale = own.scale if own.source == chosen.source else None

    def images(shape: InputShape) -> PublicSamples:
        try:
            return images_of(chosen, root, shards, shape, scale)
        except (DataError, ValueError) as error:
            raise SettingsError(f"the run's public set ({chosen.title}): {error}") from None

    return images


def images_of(
    public: PublicSet, root: str, shards: Shards, shape: InputShape, scale: Scale | None = None
) -> PublicSamples:
    """Return a random choice of the training samples of the public source, [samples, *shape].

    The choice is the same on every machine that has the files. Values that are not pixels are scaled.
    """
    settings = DataSettings(public.source, root, public.domain, shape=shape.axes, scale=scale)
    domain = shards.domain(settings)
    there = len(domain.train.labels)
    if there < public.samples:
        raise DataError(
            f"{domain.name} has {there:,} training samples, but public.samples is {public.samples:,}; "
            "plan fewer public samples"
        )
    order = StableRandom(public.seed, public.source, domain.name, "public").permutation(there)
    found = domain.train.samples(order[: public.samples], shape)
    return found if found.dtype == np.uint8 else settings.scaling.applied(found)
