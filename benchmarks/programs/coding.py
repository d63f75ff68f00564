"""The CPU time of coding a million numbers in each form, and of adding an update with and without a codec.

The times are of one core, the medians of several repetitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Final

import numpy as np
import torch

from protofleet.methods.contract.base import Reply
from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.wants import problem_with
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.weights import weight_wants, weights_of
from protofleet.protocol.coding.delta import body_of, bytes_of
from protofleet.protocol.coding.update import DecodedArrays, chance_of, encode_arrays
from protofleet.protocol.settings.codec import BROADCAST, CodecStage
from protofleet.protocol.wire.messages import NOTHING, Arrays

SHAPE: Final = (1024, 1024)
STAGES: Final = {
    "exact": CodecStage(against=BROADCAST),
    "packed": CodecStage(against=BROADCAST, pack=True),
    "float16": CodecStage("float16", BROADCAST),
    "int8": CodecStage("int8", BROADCAST),
    "int4": CodecStage("int4", BROADCAST),
    "rice": CodecStage("rice", BROADCAST, feedback=True),
    "ternary": CodecStage("ternary", BROADCAST, keep=16, feedback=True),
}


def measure(times: int = 9) -> dict[str, object]:
    torch.set_num_threads(1)  # the CPU time of idle threads would count too
    draw = np.random.Generator(np.random.Philox(7))
    before = {"weights.w": draw.standard_normal(SHAPE, np.float32)}
    after = {"weights.w": before["weights.w"] + 0.01 * draw.standard_normal(SHAPE, np.float32)}
    forms = {name: per_million(after, before, stage, times) for name, stage in STAGES.items()}
    return {**forms, "update": of_update(times)}


def per_million(after: Arrays, before: Arrays, stage: CodecStage, times: int) -> dict[str, float]:
    """Return the milliseconds per million numbers, and the bytes per number."""
    stages, shown, chance = {"weights": stage}, body_of(bytes_of(before)), chance_of(0)
    coded = encode_arrays(after, stages, before, NOTHING, chance).arrays
    body = body_of(bytes_of(coded))
    millions = after["weights.w"].size / 1e6

    def decode() -> None:
        np.asarray(DecodedArrays(body, stages, shown, 1 << 24)["weights.w"])

    encoding = milliseconds(lambda: encode_arrays(after, stages, before, NOTHING, chance), times)
    decoding = milliseconds(decode, times)
    return {
        "encoding_ms": round(encoding / millions, 1),
        "decoding_ms": round(decoding / millions, 1),
        "bytes_per_number": round(len(coded["weights.~"]) / after["weights.w"].size, 3),
    }


def of_update(times: int) -> dict[str, float]:
    """Return the CPU time in which a coordinator checks and adds an update of FedAvg, coded and uncoded."""
    model = Plan("fedavg", 10, 2, size=16, network=Network("cnn_bn")).model()
    wants, shown = weight_wants(model), to_numpy(weights_of(model))
    draw = np.random.Generator(np.random.Philox(8))
    after = {
        name: array + (0.01 * draw.standard_normal(array.shape)).astype(array.dtype)
        for name, array in shown.items()
    }
    stages, base = {"weights": STAGES["ternary"]}, body_of(bytes_of(shown))
    sent = {
        "coded": bytes_of(encode_arrays(after, stages, shown, NOTHING, chance_of(0)).arrays),
        "uncoded": bytes_of(after),
    }

    def add(name: str) -> None:
        payload = LazyPayload(
            DecodedArrays(body_of(sent[name]), stages if name == "coded" else {}, base, 1 << 24)
        )
        assert problem_with(wants, payload, 100) is None
        dict(weighted_mean([Reply("a", 100, payload)], wants))

    found = {f"{name}_ms": round(milliseconds(partial(add, name), times), 1) for name in sent}
    sizes = {f"{name}_bytes": len(data) for name, data in sent.items()}
    return {**found, **sizes, "coded over uncoded": round(found["coded_ms"] / found["uncoded_ms"], 2)}


def milliseconds(work: Callable[[], object], times: int) -> float:
    found = []
    for _ in range(times):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return 1000 * median(found)
