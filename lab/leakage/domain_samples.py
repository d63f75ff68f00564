"""The samples of devices, and the samples of their domains that no device has used."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shard, Shards, TensorSamples, to_tensor
from protofleet.lab.leakage.held_out import content_hashes, unused
from protofleet.lab.leakage.observed import Truth
from protofleet.methods.plugins.allowed import PlugIns

# Source -> pairs of domains whose training samples with the same index show the same object.
TWINS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {"digits": (("mnist", "mnistm"),)}


class DomainSamples:
    """The loader of the samples of devices."""

    def __init__(self, settings: Mapping[str, DataSettings], plugins: PlugIns) -> None:
        self._settings, self._loader = settings, Shards()
        self.shards = {name: self._loader.load(one, plugins) for name, one in sorted(settings.items())}

    def truths(self) -> dict[str, Truth]:
        """Return the truth of each device, without its client half."""
        used = {
            content
            for shard in self.shards.values()
            for part in (shard.train, shard.validation)
            for content in content_hashes(part.x)
        }
        return {name: self._truth(name, used) for name in self.shards}

    def own_truth(self, device: str) -> Truth:
        """Return the truth of a device that does not know which samples other devices have.

        If the device shares its domain, only its validation and test samples have never been sent. Test samples may
        differ from training samples in more than membership.
        """
        shard, settings = self.shards[device], self._settings[device]
        if settings.is_plugin or settings.parts > 1:
            x, y = (
                torch.cat([getattr(part, name) for part in (shard.validation, shard.test)]) for name in "xy"
            )
            return Truth(device, shard.domain, shard.train, TensorSamples(x, y))
        return self._truth(device, set(content_hashes(shard.train.x)))

    def _truth(self, device: str, used: Collection[bytes]) -> Truth:
        shard, settings = self.shards[device], self._settings[device]
        if settings.is_plugin:  # The source has no more samples than its splits.
            return Truth(device, shard.domain, shard.train, shard.test)
        pool = self._pool(settings, shard)
        hashes = content_hashes(pool.x)
        fresh = torch.from_numpy(unused(hashes, used, self._twins(settings, shard, hashes)))
        return Truth(device, shard.domain, shard.train, TensorSamples(pool.x[fresh], pool.y[fresh]))

    def _pool(self, settings: DataSettings, shard: Shard) -> TensorSamples:
        """Return all training samples of the domain. Test samples may have other fonts or other backgrounds."""
        train = self._loader.domain(settings).train
        values = train.samples(np.arange(len(train.labels)), settings.input_shape)
        labels = torch.from_numpy(train.labels.astype(np.int64))
        return TensorSamples(to_tensor(values, settings.input_shape, shard.scale), labels)

    def _twins(
        self, settings: DataSettings, shard: Shard, hashes: list[bytes]
    ) -> Mapping[bytes, list[bytes]]:
        found: dict[bytes, list[bytes]] = {}
        for pair in TWINS.get(settings.source, ()):
            if settings.domain in pair:
                other = next(name for name in pair if name != settings.domain)
                pool = self._pool(replace(settings, domain=other), shard)
                for content, twin in zip(hashes, content_hashes(pool.x), strict=True):
                    found.setdefault(content, []).append(twin)
        return found
