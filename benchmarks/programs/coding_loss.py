"""Measure the accuracy that a method loses if its last prototypes are coded: the loss of the coding alone.

The devices of an experiment train in this process, without a codec. Then each device is measured twice with the same
network: with the last broadcast, and with the same broadcast after coding and decoding. No training follows, so a
difference comes only from the rounded prototypes. Start it with

    python -m benchmarks.programs.coding_loss experiments/digits/fedproto.toml small 1 2 3
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from protofleet.edge_client.data.shard import Shard
from protofleet.edge_client.evaluate import evaluate
from protofleet.lab.api.simulated import Federation, Simulated
from protofleet.lab.local.centralised import shards_of
from protofleet.lab.local.experiment import Experiment, read_experiment
from protofleet.methods.contract.base import Payload
from protofleet.methods.contract.bridge import to_numpy, to_torch
from protofleet.methods.contract.torch_setup import compute_deterministically
from protofleet.protocol.coding.delta import body_of, encode_broadcast
from protofleet.protocol.coding.update import chance_of
from protofleet.protocol.settings.named_codecs import NAMED, CodecName


def coded_once(payload: Payload, experiment: Experiment, codec: CodecName) -> Payload:
    """Return the arrays of a broadcast after coding them without an earlier broadcast, and decoding them."""
    stages = experiment.plan.with_codec(codec).codec
    if stages is None:
        raise SystemExit(f"the codec {codec} rounds nothing; name a codec that rounds, such as small")
    coded = encode_broadcast(to_numpy(payload), stages.down, None, chance_of(experiment.seed, codec))
    return to_torch(dict(body_of(coded.decoded)))


def accuracy(done: Simulated, data: Mapping[str, Shard], payload: Payload) -> float:
    """Return the mean accuracy in percent over the devices, which predict with these arrays."""
    found = []
    for name, half in done.clients.items():
        half.receive(payload)
        found.append(evaluate(half, data[name], done.view)[f"accuracy.test.{done.view}"])
    return 100 * fmean(found)


def loss_of(experiment: Experiment, codec: CodecName) -> tuple[float, float]:
    """Return the accuracy with the exact broadcast and with the coded broadcast, in percent."""
    data = shards_of(experiment)
    done = Federation(experiment.plan.with_codec("off"), data, reboots=False).run()
    exact = done.server.payload()
    return accuracy(done, data, exact), accuracy(done, data, coded_once(exact, experiment, codec))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("codec", choices=list(NAMED))
    parser.add_argument("seeds", type=int, nargs="+")
    options = parser.parse_args()
    compute_deterministically(strict=False)
    for seed in options.seeds:
        experiment = read_experiment(options.experiment, [f"seed={seed}", "codec=off"])
        exact, coded = loss_of(experiment, options.codec)
        print(
            f"{experiment.plan.method} seed {seed}: exact {exact:.2f} %, {options.codec} {coded:.2f} %, ",
            end="",
        )
        print(f"difference {coded - exact:+.2f} points")


if __name__ == "__main__":
    main()
