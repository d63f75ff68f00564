"""The data for the report's pictures of the feature space: embeddings, and prototypes or anchors.

The data stay on the device, for example in <folder>/pictures/round-0003.npz. They are never sent over the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import numpy as np

from protofleet.edge_client.evaluate import Splits
from protofleet.methods.contract.base import ClientHalf, Payload
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.parts.local import in_batches
from protofleet.protocol.settings.bounds import Rounds, Within
from protofleet.protocol.settings.reader import demand_within
from protofleet.protocol.storage.disk import Disk

# A snapshot stores an array of a broadcast or of an update only if the array has at most this number of bytes. The
# prototypes of a run are small enough, but the features of all devices are not.
MAX_ARRAY_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Snapshots:
    """The [pictures] table: the embeddings that a device keeps for the pictures of a report."""

    samples: Annotated[int, Within(0, 1_000_000_000)] = 0
    """Number of training samples of each device whose embedding is kept; 0 means no pictures."""
    rounds: tuple[Rounds, ...] = ()
    """Rounds after whose training a snapshot is saved; a snapshot is always saved at the last evaluation."""

    def __post_init__(self) -> None:
        demand_within(self)

    def wanted(self, number: int, phase: str) -> bool:
        return self.samples > 0 and (phase == "evaluate" or (phase == "train" and number in self.rounds))


def delete_earlier_evaluations(folder: Path, number: int, kept: tuple[int, ...]) -> None:
    """Delete the snapshots of all rounds except round `number` and the rounds in `kept`.

    For example, after a new evaluation between rounds, delete the snapshot of the previous evaluation.
    """
    for path in folder.glob("round-*.npz"):
        found = path.stem.removeprefix("round-")
        if found.isdigit() and int(found) not in (number, *kept):
            path.unlink()


def save_snapshot(
    folder: Path, most: int, number: int, half: ClientHalf, data: Splits, received: Payload, sent: Payload
) -> Path:
    # The samples of a share are in random order, so the first samples are a random choice.
    x, y = data.train.x[:most], data.train.y[:most]
    arrays = {
        "features": in_batches(half.model, half.embedding, x).cpu().numpy(),
        "labels": y.cpu().numpy(),
        "domain": np.array(data.domain),
        **_small("received", received),
        **_small("sent", sent),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"round-{number:04}.npz"
    with Disk().fresh(path, durable=False) as fresh, fresh.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy 2 types its option as if it were any array
    return path


def _small(way: str, payload: Payload) -> Mapping[str, np.ndarray]:
    """Return the small arrays of a payload; leave out weights of modules (arrays with a dot in their names)."""
    chosen = {name: payload[name] for name in payload if "." not in name}
    return {
        f"{way}.{name}": value for name, value in to_numpy(chosen).items() if value.nbytes <= MAX_ARRAY_BYTES
    }
