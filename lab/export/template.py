"""Make a template: an ONNX file in which a board replaces all weights by the weights of a new model.

The file is exported once, on this machine, with random weights. All random numbers are different, because
the exporter would store equal tensors only once.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import torch

from protofleet.lab.export.formats import onnx_bytes
from protofleet.methods.served.card import Card, CardError
from protofleet.methods.served.served import Served
from protofleet.methods.served.template import PLACES, ROWS, fill, places_in, with_room

# The end of the names of counters in batch norms. Predictions do not use these counters.
COUNTERS = "num_batches_tracked"


def template_of(model: Served, card: Card) -> tuple[bytes, Card]:
    """Return the file with this model's tensors, and the card with the positions of these tensors in the file."""
    probe = drawn(roomy(model))
    content = onnx_bytes(probe, card, optimize=False)
    offsets = places_in(content, probe.state_dict())
    if missing := [
        name for name in probe.state_dict() if name not in offsets and not name.endswith(COUNTERS)
    ]:
        raise CardError(
            f"no template can be made of this model, because the ONNX exporter has changed {missing[0]}; export "
            "the model "
            "without --template"
        )
    card = replace(card, offsets=offsets)
    return fill(content, card, model.state_dict()), card


def roomy(model: Served) -> Served:
    """Return a copy of the model with space for more rows (prototypes).

    If each class has at most one row, the copy has space for one row of every class. Otherwise it has space
    for twice as many rows as now.
    """
    copy = deepcopy(model)
    tensors = copy.state_dict()
    if not {ROWS, PLACES} <= tensors.keys():
        return copy
    rows, (classes, each) = len(tensors[ROWS]), tensors[PLACES].shape
    room = (classes, 1) if each == 1 else (max(2 * rows, classes), 2 * each)
    wider = with_room(tensors, *room)
    copy.rule.rows, copy.rule.places = wider[ROWS], wider[PLACES]
    return copy


def drawn(model: Served) -> Served:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
            elif value.numel() > 1:
                value.copy_(torch.randint(0, 1 << 30, value.shape, generator=generator))
    return model
