"""An ONNX file whose numbers can be replaced on a board without ONNX, torch's exporter or protobuf.

The file is exported with an unchanged graph, and every tensor has its own name. So the bytes of each tensor
have a fixed place and length, which the card of the template states. In a template, the rule `Nearest` has a fixed
number of rows. If a model has fewer rows, the template is filled up with rows that belong to no class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from protofleet.methods.nets.weights_file import NAMES
from protofleet.methods.served.card import Card, CardError, TensorPlace

ROWS, PLACES = "rule.rows", "rule.places"
# Field numbers in onnx.proto, on the path from the model to the name and the values of a tensor.
GRAPH: Final = 7
INITIALIZER: Final = 5
NAME: Final = 8
RAW_DATA: Final = 9


def places_in(model: bytes, tensors: Mapping[str, Tensor]) -> dict[str, TensorPlace]:
    """Return the places of the tensors that the graph reads.

    A batch norm also has a count of its batches. The graph does not contain this count.
    """
    found = {}
    for name, at, length in _initializers(model):
        if name in tensors:
            value = tensors[name]
            if length != value.nbytes:
                raise CardError(
                    f"{name} has {length} bytes in the ONNX file, but {value.nbytes} in the model"
                )
            found[name] = TensorPlace(at, NAMES[value.dtype], tuple(value.shape))
    return found


def fill(template: bytes, card: Card, tensors: Mapping[str, Tensor]) -> bytes:
    """Return model.onnx with these tensors.

    `card` is the card of the template, and `tensors` are the state dict of a served model. Raise CardError if
    the tensors are from another network or rule, or have more rows than the template.
    """
    if not card.offsets:
        raise CardError("the card has no offsets, so it is not from a template; export with --template")
    numbers = _with_room(card.offsets, tensors)
    filled = bytearray(template)
    for name, place in card.offsets.items():
        if name not in numbers:
            raise CardError(
                f"the template has the tensor {name[:64]}, but the model does not: they are from different runs"
            )
        raw = _bytes_for(name, numbers[name], place)
        if not 0 <= place.at <= len(filled) - len(raw):
            raise CardError(
                f"the tensor {name[:64]} does not fit into the template; export the template again"
            )
        filled[place.at : place.at + len(raw)] = raw
    return bytes(filled)


def _bytes_for(name: str, value: Tensor, place: TensorPlace) -> bytes:
    if (NAMES[value.dtype], tuple(value.shape)) != (place.dtype, place.shape):
        raise CardError(
            f"{name[:64]} is {NAMES[value.dtype]} {list(value.shape)}, but in the template it is {place.dtype} "
            f"{list(place.shape)}: they are from different runs"
        )
    array = value.detach().cpu().contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def with_room(tensors: Mapping[str, Tensor], rows: int, each: int) -> dict[str, Tensor]:
    """Return the tensors; the rule is padded to `rows` rows, and to `each` indices for each class."""
    table, places = tensors[ROWS], tensors[PLACES]
    if len(table) > rows or places.shape[1] > each:
        raise CardError(
            f"the model has {len(table)} rows, and up to {places.shape[1]} for one class, but the template has "
            f"room for {rows} rows, and for {each} of one class; export the template again"
        )
    nowhere = places.new_full((len(places), each), rows)
    nowhere[:, : places.shape[1]] = torch.where(places == len(table), rows, places)
    padded = torch.cat([table, table.new_zeros(rows - len(table), table.shape[1])])
    return {**tensors, ROWS: padded, PLACES: nowhere}


def _with_room(offsets: Mapping[str, TensorPlace], tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    if not {ROWS, PLACES} <= offsets.keys() & tensors.keys():
        return tensors
    return with_room(tensors, offsets[ROWS].shape[0], offsets[PLACES].shape[1])


def _initializers(model: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield the name of each tensor, the place where its numbers begin, and their length in bytes."""
    for graph in _fields(model, 0, len(model), GRAPH):
        for tensor in _fields(model, *graph, INITIALIZER):
            names = [model[start:stop].decode() for start, stop in _fields(model, *tensor, NAME)]
            for start, stop in _fields(model, *tensor, RAW_DATA):
                yield names[0], start, stop - start


def _fields(data: bytes, start: int, stop: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each field that has the field number `wanted` and states its length.

    The bytes are in the wire format of protobuf.
    """
    while start < stop:
        key, start = _varint(data, start)
        number, kind = key >> 3, key & 7
        if kind == 2:
            length, start = _varint(data, start)
            if number == wanted:
                yield start, start + length
            start += length
        elif kind == 0:
            _, start = _varint(data, start)
        else:
            start += {1: 8, 5: 4}[kind]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
