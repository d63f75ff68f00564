"""Describe the keys of a settings table: the type, bounds, default and sentence from the dataclass."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from protofleet.protocol.settings.bounds import Within, shown
from protofleet.protocol.settings.reader import encode, toml_literal
from protofleet.protocol.settings.sentences import sentences
from protofleet.protocol.settings.size import ByteSize

ANY_NAME: Final = "NAME"  # placeholder for the name that the user gives to a table
LARGE: Final = 10_000  # this number and larger numbers are written with underscores
DICTS: Final = (dict, Mapping)
# Type -> its name in the singular and in the plural.
TYPES: Final[Mapping[Any, tuple[str, str]]] = {
    int: ("whole number", "whole numbers"),
    float: ("number", "numbers"),
    ByteSize: ("size", "sizes"),
    str: ("string", "strings"),
    bool: ("true or false", "true or false"),
    Any: ("value", "values"),
}


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """A key of a settings table."""

    key: str
    type: str
    bounds: str  # the text after "must be" in an error message; "" without bounds
    required: bool
    default: Any  # the value that is used if the key is left out; None without a default
    sentence: str

    @property
    def default_text(self) -> str:
        """Return the default in TOML form; without a default, return "required" or "left out"."""
        if self.required:
            return "required"
        if self.default is None:
            return "left out"
        if isinstance(self.default, bool) or not isinstance(self.default, (int, float)):
            return toml_literal(self.default)
        text = shown(self.default)
        return text if abs(self.default) >= LARGE else text.replace("_", "")


def keys(cls: type) -> list[DescribedSetting]:
    """Return the keys of a settings class in the order of its fields.

    A key for a nested table has an empty table as its default.
    """
    hints, words = typing.get_type_hints(cls, include_extras=True), sentences(cls)
    return [_key(field, hints[field.name], words.get(field.name, "")) for field in _fields(cls)]


def tables(cls: type, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type]]:
    """Yield the path and the class of a table, and then of each table inside it."""
    yield path, cls
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in _fields(cls):
        for inner, named in _classes(hints[field.name]):
            yield from tables(inner, (*path, field.name, *named))


def added_keys(cls: type, base: type) -> list[DescribedSetting]:
    """Return the keys that a class adds to its base class, or declares differently from its base class."""
    common = keys(base)
    return [setting for setting in keys(cls) if setting not in common]


def _fields(cls: type) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if field.init]


def _classes(hint: Any) -> Iterator[tuple[type, tuple[str, ...]]]:
    """Yield each settings class that a type contains, and the path from the key to the table of this class."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield hint, ()
        return
    named = (ANY_NAME,) if get_origin(hint) in DICTS else ()
    for part in () if get_origin(hint) is Annotated else get_args(hint):
        yield from ((cls, (*named, *below)) for cls, below in _classes(part))


def _key(field: dataclasses.Field[Any], hint: Any, sentence: str) -> DescribedSetting:
    required = field.default is field.default_factory is MISSING
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    if required or dataclasses.is_dataclass(default):
        default = None if required else {}
    return DescribedSetting(
        field.name, type_words(hint), bounds_words(hint), required, encode(default), sentence
    )


def type_words(hint: Any, plural: bool = False) -> str:
    """Return the type of a value in words, as the settings reader names it in error messages."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_words(arguments[0], plural)
    if origin is Literal:
        return type_words(type(arguments[0]), plural)
    if origin in (Union, types.UnionType):
        inner = (part for part in arguments if part is not type(None))
        return " or ".join(type_words(part, plural) for part in inner)
    if origin in (tuple, list):
        of = "" if arguments[0] is Any else f" of {type_words(arguments[0], plural=True)}"
        return f"{'lists' if plural else 'list'}{of}"
    if origin in DICTS and arguments[1] is not Any:
        return f"{type_words(arguments[1], plural=True)} by name"
    if origin in DICTS or dataclasses.is_dataclass(hint):
        return "tables" if plural else "table"
    return TYPES[hint][plural] if hint in TYPES else getattr(hint, "__name__", str(hint))


def bounds_words(hint: Any) -> str:
    """Return the bounds of a value, or of each value in a list or mapping, in words; "" without bounds."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return "; ".join(str(bound) for bound in hint.__metadata__ if isinstance(bound, Within))
    if origin is Literal:
        words = ", ".join(map(toml_literal, arguments))
        return f"one of {words}" if len(arguments) > 1 else words
    if origin in (Union, types.UnionType):
        return ", or ".join(words for part in arguments if (words := bounds_words(part)))
    if origin in (tuple, list, *DICTS) and arguments:
        inner = bounds_words(arguments[1] if origin in DICTS else arguments[0])
        return f"each {inner}" if inner else ""
    return ""


def for_programs(setting: DescribedSetting) -> dict[str, Any]:
    """Return a setting in a form for JSON; an infinite number becomes a string, because JSON has no infinity."""
    default = setting.default
    if isinstance(default, float) and not math.isfinite(default):
        default = toml_literal(default)
    return {**dataclasses.asdict(setting), "default": default}
