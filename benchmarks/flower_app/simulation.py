"""Flower's simulation of a round of benchmarks/programs/hosted_round.py: the same network, samples and steps.

Run `python simulation.py WISH` with the Python of Flower's environment. WISH is JSON with the keys devices,
rounds, epochs, processes, examples, and the file for the times at which rounds have ended. Ray starts
`processes` workers. Each worker has one core and one thread of torch, and makes the samples of a device once.
The checkout must be on PYTHONPATH, so that the workers can import it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.flower_app.training_client import network, train


def main(wish: dict[str, Any]) -> None:
    def note(_round: int, _arrays: ArrayRecord) -> None:
        """Write down the time. Flower calls this function before the first round and after each round."""
        with Path(wish["notes"]).open("a") as notes:
            notes.write(f"{time.monotonic()}\n")

    def serve(grid: Grid, context: Context) -> None:
        n = wish["devices"]
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
        strategy.start(
            grid, ArrayRecord(network().state_dict()), num_rounds=wish["rounds"], evaluate_fn=note,
            train_config=ConfigRecord({"epochs": wish["epochs"], "examples": wish["examples"]}),
        )  # fmt: skip

    server, client = ServerApp(), ClientApp()
    server.main()(serve)
    client.train()(train)
    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": wish["processes"]},
    }
    run_simulation(server, client, wish["devices"], backend_config=backend)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
