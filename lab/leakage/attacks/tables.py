"""Rows of classes as tables."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from protofleet.lab.leakage.scene import AnsweredTask
from protofleet.methods.contract.base import Payload

# Kinds of arrays with a row of numbers for each class, which is a mean over the samples of the class or near it.
CLASS_ROWS: Final = ("prototypes", "means", "targets")


def table(
    payload: Payload, classes: int, width: int, name: str = "prototypes"
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the first `width` numbers of rows as a table [C, width], and the mask [C] of its known classes.

    Rows of one class are averaged. Rows without labels are those of all classes.
    """
    found, counts = np.zeros((classes, width)), np.zeros(classes)
    rows = payload[name].double().numpy()[:, :width]
    labels = payload["labels"].numpy() if "labels" in payload else np.arange(classes)
    np.add.at(found, labels, rows)
    np.add.at(counts, labels, 1.0)
    return found / np.maximum(counts, 1)[:, None], counts > 0


def class_rows_in(task: AnsweredTask, classes: int) -> str:
    """Return the name of the array with class rows in an answer; "" if there is none."""
    for name in CLASS_ROWS:
        if name in task.answer and task.answer[name].is_floating_point():
            rows = task.answer[name]
            if rows.dim() == 2 and ("labels" in task.answer or len(rows) == classes):
                return name
    return ""
