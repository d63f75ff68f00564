"""Encode a served model in the formats of other programs. Each file accepts any number of samples at once."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

from protofleet.methods.nets.weights_file import encoded_weights
from protofleet.methods.served.card import Card
from protofleet.methods.served.served import Served
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.installation.extras import install_hint

SAFETENSORS, ONNX, TORCHSCRIPT, PT2 = "safetensors", "onnx", "torchscript", "pt2"
FILES: Final[Mapping[str, str]] = {
    SAFETENSORS: "model.safetensors", ONNX: "model.onnx", TORCHSCRIPT: "model.torchscript.pt", PT2: "model.pt2",
}  # fmt: skip
INPUT, OUTPUT = "samples", "scores"
# Number of samples in the traced input. With one sample, the exported model would accept only one sample.
TRACED_WITH: Final = 2
QUIET: Final = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "torch._dynamo")


def has_onnx() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxscript"))


def require_onnx() -> None:
    if not has_onnx():
        raise SettingsError(
            f"an export as ONNX needs the packages onnx and onnxscript: {install_hint('export')}"
        )


def encoded(form: str, model: Served, card: Card) -> bytes:
    return ENCODERS[form](model, card)


def onnx_bytes(model: Served, card: Card, *, optimize: bool = True) -> bytes:
    """Encode the model as ONNX.

    Without `optimize`, the file has every tensor under its own name. A template needs these names.
    """
    require_onnx()
    import torch.onnx

    many = {INPUT: {0: torch.export.Dim("n", min=1)}}
    with _quiet():
        program = torch.onnx.export(
            model, (card.input.drawn(TRACED_WITH),), dynamo=True, input_names=[INPUT], output_names=[OUTPUT],
            dynamic_shapes=many, optimize=optimize, verbose=False,
        )  # fmt: skip
        assert program is not None
        content: bytes = program.model_proto.SerializeToString()
    return content


def _safetensors(model: Served, card: Card) -> bytes:
    about = {"protofleet": "1", "classes": json.dumps(card.classes), "method": card.method, "way": card.way}
    return encoded_weights(model.state_dict(), about)


def _torchscript(model: Served, card: Card) -> bytes:
    trace: Any = torch.jit.trace  # The type Any is needed, because torch has no types for this function.
    with _quiet(), torch.no_grad():
        traced = trace(model, (card.input.drawn(TRACED_WITH),), check_trace=False)
        return _saved(lambda file: torch.jit.save(traced, file))


def _pt2(model: Served, card: Card) -> bytes:
    many = {INPUT: {0: torch.export.Dim("n", min=1)}}
    with _quiet():
        program = torch.export.export(model, (card.input.drawn(TRACED_WITH),), dynamic_shapes=many)
        return _saved(lambda file: torch.export.save(program, file))


def _saved(save: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    save(file)
    return file.getvalue()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of exporters about internals that a user cannot change."""
    loggers = {logging.getLogger(name): logging.getLogger(name).level for name in QUIET}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in loggers.items():
                logger.setLevel(level)


ENCODERS: Final[Mapping[str, Callable[[Served, Card], bytes]]] = {
    SAFETENSORS: _safetensors, ONNX: onnx_bytes, TORCHSCRIPT: _torchscript, PT2: _pt2,
}  # fmt: skip
