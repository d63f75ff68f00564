"""Make values.schema.json, with which Helm checks the values before it sends anything to a cluster."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Final

from protofleet.deploy.kubernetes.forms import form_of
from protofleet.protocol.settings.bounds import Within

TYPES: Final = {int: "integer", str: "string", bool: "boolean"}


def schema_of(cls: type, fixed: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a class of values, and of the values that must not be changed."""
    found = _table(cls)
    constants = {key: {"const": value} for key, value in fixed.items()}
    found["properties"]["fleet"] = {"type": "object", "properties": constants, "required": [*constants]}
    # Helm adds the table `global` by itself.
    found["properties"]["global"] = {"type": "object"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **found, "required": ["fleet"]}


def _table(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    properties = {field.name: _value(hints[field.name]) for field in dataclasses.fields(cls)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _value(hint: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _table(hint)
    if typing.get_origin(hint) is typing.Literal:
        return {"enum": [*typing.get_args(hint)]}
    if form := form_of(hint):
        return {"type": "string", "pattern": f"^({form.pattern})$"}
    bounds = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Within)]
    plain = typing.get_args(hint)[0] if bounds else hint
    found: dict[str, Any] = {"type": TYPES[plain]}
    for bound in bounds:
        found |= {"minimum": bound.least, "maximum": bound.most}
    return found
