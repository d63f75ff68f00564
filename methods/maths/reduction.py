"""The reductions of losses: training takes the mean over the batch, tests also need single values or sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

REDUCE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "none": torch.Tensor.clone,
}
