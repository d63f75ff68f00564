"""Flower's own FedAvg, which writes down the time at the end of each round."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg


def main(grid: Grid, context: Context) -> None:
    wish = context.run_config
    rng, devices = np.random.default_rng(0), int(wish["devices"])
    model = [rng.standard_normal(shape, dtype=np.float32) for shape in json.loads(str(wish["shapes"]))]

    def note(_round: int, _arrays: ArrayRecord) -> None:
        """Write down the time. Flower calls this function before the first round and after each round."""
        with Path(str(wish["notes"])).open("a") as notes:
            notes.write(f"{time.monotonic()}\n")

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=devices, min_available_nodes=devices)
    strategy.start(grid, ArrayRecord(model), num_rounds=int(wish["rounds"]), evaluate_fn=note)


app = ServerApp()
app.main()(
    main
)  # The function is not decorated, because a decorator has no types if Flower is not installed.
