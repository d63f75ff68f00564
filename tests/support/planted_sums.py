"""Code that tests plant in real processes with masked sums: it records words, or makes a device silent."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from protofleet.coordinator.secagg import phase
from protofleet.edge_client.secagg.instance import Instance
from protofleet.edge_client.task_handler import TaskHandler


def note_words(folder: str) -> None:
    """Make this device write the words that it masks to `folder`/<hash of the terms>.<its name>.npy."""
    masked = Instance.masked

    def noted(instance, first, sealed, words):
        np.save(Path(folder) / f"{instance.book.terms.hash.hex()}.{instance.name}.npy", words)
        return masked(instance, first, sealed, words)

    Instance.masked = noted


def note_sums(folder: str) -> None:
    """Make this coordinator write the words, the survivors and the bits of each sum to `folder`."""
    conduct = phase.conduct

    def noted(terms, *given):
        found = yield from conduct(terms, *given)
        path = Path(folder) / f"{terms.round}.{terms.stage}.{terms.hash.hex()}.npz"
        np.savez(path, words=found.words, survivors=np.array(found.survivors), bits=terms.field.bits)
        return found

    phase.conduct = noted


def fall_silent(tasks: Collection[tuple[int, str]]) -> None:
    """Make this device ignore the tasks of these rounds and phases."""
    take = TaskHandler.take
    TaskHandler.take = lambda self, task: (task.round, task.phase) in tasks or take(self, task)
