"""The features of a frozen backbone: a device computes them once, and uses them in place of its samples.

A method does not notice this, because frozen features return computed features as they are. Without a store, each job
computes the features itself. In both cases, the samples are divided into the same batches, so the bits are equal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from protofleet.edge_client.data.fingerprint import fingerprint
from protofleet.edge_client.data.shard import TensorSamples
from protofleet.edge_client.evaluate import Splits
from protofleet.methods.contract.base import ClientHalf, Samples
from protofleet.methods.nets.base import Net
from protofleet.methods.nets.weights_file import (
    WeightsFileError,
    pieces_of_weights,
    read_weights,
    said_about,
)
from protofleet.protocol.storage.disk import Disk

log = logging.getLogger("protofleet.device")

# The backbone computes the features of 16 to 31 samples in one step. Larger steps would take too much memory: with
# images of 112 pixels, EfficientNet-Lite0 needs 2.4 MB for one sample.
PIECE: Final = 16
ROOM: Final = 4  # The disk must have room for this many files of the same size; training needs the rest.


@dataclass(frozen=True)
class FeatureSplits:
    """The data of a device, with features in place of samples."""

    domain: str
    classes: int
    names: tuple[str, ...]
    train: Samples
    validation: Samples
    test: Samples


@dataclass(frozen=True)
class StoredFeatures:
    """The files with a device's features.

    The name of a file is a hash of everything that the features depend on, so no file is ever wrong for another
    network or for other data. If the files would take more than `most` bytes, the files that were used least recently
    are deleted.
    """

    folder: Path
    most: int
    network: str  # Description of the network with its settings.
    disk: Disk

    def of(self, model: Net, x: Tensor) -> Tensor:
        """Return the features of samples from a file, or compute and store them."""
        if not self.most or not len(x):
            return computed(model, x)
        path = self.folder / f"{self._key(model, x)}.safetensors"
        if (stored := _read(path, (len(x), model.feature_size))) is not None:
            return stored.to(x.device)
        found = computed(model, x)
        try:
            self._write(path, found.cpu())
        except OSError as error:
            log.warning("the features of the frozen backbone are not stored: %s; training goes on", error)
        return found

    def _key(self, model: Net, x: Tensor) -> str:
        place = torch.cuda.get_device_name(x.device) if x.is_cuda else x.device.type
        state = model.features.state_dict()
        table = {
            "network": self.network,
            "names": list(state),
            "weights": fingerprint(*(value.cpu().numpy() for value in state.values())),
            "data": fingerprint(x.cpu().numpy()),
            # The last bits of the features depend on these values.
            "computed": [PIECE, torch.__version__, place, torch.get_num_threads()],
        }
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()

    def _write(self, path: Path, rows: Tensor) -> None:
        if rows.nbytes > self.most:
            return
        self.disk.make(self.folder)
        self._make_room(rows.nbytes)
        if self.disk.free_bytes(self.folder) < ROOM * rows.nbytes:
            raise OSError(f"too little of the disk of {self.folder} is free for {rows.nbytes:,} more bytes")
        about = {"sha256": fingerprint(rows.numpy())}
        with self.disk.fresh(path, durable=False) as fresh, fresh.open("wb") as file:
            file.writelines(pieces_of_weights({"features": rows}, about))

    def _make_room(self, size: int) -> None:
        files = []
        for path in self.folder.glob("*.safetensors"):
            # Another device that shares the folder may have deleted the file.
            with contextlib.suppress(FileNotFoundError):
                files.append((path.stat(), path))
        total = size + sum(stat.st_size for stat, _ in files)
        for stat, path in sorted(files, key=lambda file: (file[0].st_mtime_ns, file[1])):
            if total <= self.most:
                return
            self.disk.remove(path)
            total -= stat.st_size


def replaces_samples(half: ClientHalf) -> bool:
    """Return whether a device replaces the samples of this half by their features."""
    return half.model.backbone_is_frozen and half.model.takes_features and not half.uses_samples


def with_features(half: ClientHalf, data: Splits, stored: StoredFeatures | None = None) -> Splits:
    """Give the half features in place of its samples, and return the data with features.

    If the backbone is not frozen, or if the half needs the samples themselves, change nothing.
    """
    if not replaces_samples(half):
        return data

    def of(part: Samples) -> TensorSamples:
        rows = stored.of(half.model, part.x) if stored else computed(half.model, part.x)
        return TensorSamples(rows, part.y)

    found = FeatureSplits(
        data.domain, data.classes, data.names, of(data.train), of(data.validation), of(data.test)
    )
    half.data = found.train if half.data is data.train else of(half.data)
    if half.validation is not None:
        half.validation = found.validation if half.validation is data.validation else of(half.validation)
    return found


@torch.no_grad()
def computed(model: Net, x: Tensor) -> Tensor:
    """Return the features of samples, computed in batches that depend only on the number of samples."""
    if not len(x):
        return x.new_empty(0, model.feature_size)
    pieces = x.tensor_split(max(1, len(x) // PIECE))
    return torch.cat([model.features(piece.contiguous()) for piece in pieces])


def _read(path: Path, shape: tuple[int, int]) -> Tensor | None:
    """Return the features in a file, or None if the file is missing or damaged."""
    try:
        rows, said = read_weights(path)["features"], said_about(path)["sha256"]
        if rows.shape == shape and rows.dtype == torch.float32 and fingerprint(rows.numpy()) == said:
            os.utime(path)  # So the file counts as used just now.
            return rows
    except FileNotFoundError:
        return None
    except (OSError, WeightsFileError, KeyError) as error:
        log.warning("%s cannot be read (%s); the features are computed again", path, error)
        return None
    log.warning("%s is damaged; the features are computed again", path)
    return None
