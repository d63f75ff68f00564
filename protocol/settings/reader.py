"""Decode TOML into frozen dataclasses and check every value.

A mistake causes an error that names the path of the setting and gives advice.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union

from protofleet.protocol.user_error import MISUSED, UserError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - Python 3.10
    import tomli as tomllib

from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.size import FORM, ByteSize, likely_size
from protofleet.protocol.settings.suggest import there_are

T = TypeVar("T")
Table = dict[str, Any]
CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # characters that must be written as escapes in a TOML string
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
USUAL_DIGITS = 4  # largest number of digits that are shown without underscores
LONGEST_SHOWN = 100  # largest number of letters of a wrong value that an error message shows


class SettingsError(UserError, ValueError):
    """The error for settings that cannot be used.

    The message says where the value is, what it is and what is allowed.
    """

    exit_code = MISUSED


def read_toml(path: Path) -> Table:
    try:
        return parse_toml(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise SettingsError(f"there is no file {path}") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}; name a TOML file") from None


def parse_toml(text: bytes, where: str) -> Table:
    try:
        # Editors on Windows begin a file with a byte order mark.
        return tomllib.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SettingsError(f"{where} cannot be read: {error}; is it a TOML file?") from None
    # ValueError is also raised for an integer of thousands of digits.
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{where} is not TOML: {error}") from None


def line_of(text: str, path: Sequence[str]) -> int:
    """Return the number of the line in which TOML text sets a key, or 0 if no line sets the key."""
    # The first `whole` lines are valid TOML on their own.
    lines, whole = text.removeprefix("\ufeff").split("\n"), 0
    for count in range(1, len(lines) + 1):
        try:
            place: object = tomllib.loads("\n".join([*lines[:count], ""]))
        except ValueError:  # the last line belongs to a value of several lines
            continue
        for key in path:
            place = place.get(key) if isinstance(place, dict) else None
        if place is not None:
            return whole + 1
        whole = count
    return 0


def override(table: Table, assignments: Sequence[str]) -> Table:
    """Return a copy of a table, changed by assignments `a.b=value`. A value that is not TOML counts as a string."""
    changed, keys = _copy(table), list[str]()
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path.strip():
            raise SettingsError(f"--set {assignment!r} is not of the form table.key=value")
        *tables, key = path.strip().split(".")
        place = changed
        for depth, name in enumerate(tables, 1):
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                where = ".".join(tables[:depth])
                raise SettingsError(f"--set {assignment!r}: {_no_table(where, place, path.strip())}")
        if earlier := [one for one in keys if one.startswith(f"{path.strip()}.")]:
            raise SettingsError(
                f"--set {assignment!r} would undo --set {earlier[0]}=...; leave out one of the two"
            )
        place[key] = _value(text.strip())
        keys.append(path.strip())
    return changed


def _no_table(where: str, value: object, path: str) -> str:
    return (
        f"{where} is not a table, but {_show(value)}; a single value and the key {path} cannot be mixed: leave out "
        f"{where} = {_show(value)}, or leave out this --set"
    )


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """Return both tables merged.

    Nested tables are merged key by key. Any other value of `above` replaces the value of `below`.
    """
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def decode_file(
    cls: type[T], path: Path, table: object, assignments: Sequence[str] = (), option: str = "--set"
) -> T:
    """Decode the table of a file after the assignments of an option are applied.

    An error names the file and the option.
    """
    try:
        return decode(cls, override(table, assignments) if isinstance(table, dict) else table)
    except SettingsError as error:
        raise SettingsError(f"{path}{f' with {option}' if assignments else ''}: {error}") from None


def decode(cls: type[T], table: object, where: str = "") -> T:
    """Return an instance of a dataclass from a table of its fields, with all values checked."""
    if not isinstance(table, Mapping):
        meant = _key_of_size(cls, table, where)
        raise SettingsError(f"{where or 'the settings'} is {_show(table)}, but must be a table{meant}")
    hints = _hints(cls)  # type: ignore[arg-type]  # every class can be hashed
    known = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            raise SettingsError(_unknown(_join(where, _key(key)), key, list(known)))
    values = {name: _decode(hints[name], table[name], _join(where, name)) for name in known if name in table}
    for name, f in known.items():
        if name not in values and f.default is f.default_factory is dataclasses.MISSING:
            raise SettingsError(f"{_join(where, name)} is missing and has no default")
    try:
        return cls(**values)
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(_of_table(where, str(error), known)) from None


def _of_table(where: str, problem: str, known: Iterable[str]) -> str:
    """Return a problem with the name of its table, "table.setting is ..." if it begins with one of the settings."""
    if not where or problem.startswith(tuple(f"{name} is " for name in known)):
        return _join(where, problem)
    return f"{where}: {problem}"


def _key_of_size(cls: type[T], value: object, where: str) -> str:
    """Suggest the first key of a table that takes a size, if the value is a size; else return ""."""
    if isinstance(value, bool | float) or ByteSize.from_toml(value) is None:
        return ""
    sizes = [key for key, hint in _hints(cls).items() if "ByteSize" in str(hint)]  # type: ignore[arg-type]
    return f"; did you mean {_join(where, sizes[0])}?" if sizes else ""


@functools.lru_cache(maxsize=256)
def _hints(cls: type) -> dict[str, Any]:
    """Return the type hints of a class. The result is cached, so that Python compiles the annotations only once."""
    return typing.get_type_hints(cls, include_extras=True)


def demand_within(settings: object) -> None:
    """Check the bounds of a dataclass that was not decoded; the class calls this function in __post_init__."""
    for name, hint in _hints(type(settings)).items():  # type: ignore[arg-type]  # every class can be hashed
        value = getattr(settings, name)
        _demand(hint, value, name)
        if typing.get_origin(hint) is tuple:
            for i, element in enumerate(value):
                _demand(typing.get_args(hint)[0], element, f"{name}[{i}]")


def _demand(hint: Any, value: Any, where: str) -> None:
    """Raise SettingsError for a number outside the bounds in its type.

    If the number may be left out, None is allowed.
    """
    union = typing.get_origin(hint) in (Union, types.UnionType)
    optional = type(None) in typing.get_args(hint)
    for part in typing.get_args(hint) if union and not isinstance(value, str) else (hint,):
        for bound in getattr(part, "__metadata__", ()):
            if isinstance(bound, Within) and value is not None and value not in bound:
                words = f"{bound}{', or left out' if optional else ''}"
                raise SettingsError(f"{where} is {_show_number(value)}, it must be {words}")


def encode(value: object) -> Any:
    """Return a settings object as plain tables, so that it can be written to a file."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {name: v for name, v in fields.items() if v is not None}
    if isinstance(value, (tuple, list)):
        return [encode(v) for v in value]
    if isinstance(value, Mapping):
        return {k: encode(v) for k, v in value.items()}
    return value


def write_toml(table: Mapping[str, Any], where: str = "") -> str:
    """Return plain tables, for example from `encode`, as TOML text."""
    plain = {k: v for k, v in table.items() if not _is_table(v)}
    lines = [f"{_key(k)} = {toml_literal(v)}" for k, v in plain.items()]
    text = "\n".join(lines) + "\n" if lines else ""
    for key, value in table.items():
        path = _join(where, _key(key))
        if isinstance(value, Mapping):
            text += f"\n[{path}]\n{write_toml(value, path)}"
        elif _is_table(value):
            text += "".join(f"\n[[{path}]]\n{write_toml(row, path)}" for row in value)
    return text


def _decode(hint: Any, value: object, where: str) -> Any:
    found = _typed(hint, value, where)
    _demand(hint, found, where)
    return found


def _alternative(hints: tuple[Any, ...], value: object, where: str) -> Any:
    """Choose one type of a union; the value is then checked against this type.

    If the value is a string and the union has a Literal, return the Literal. Otherwise return the first type.
    """
    inner = [hint for hint in hints if hint is not type(None)]
    words = [hint for hint in inner if typing.get_origin(hint) is typing.Literal]
    if not words or len(inner) == 1:
        return inner[0]
    names, a_table = typing.get_args(words[0]), dataclasses.is_dataclass(inner[0])
    is_word = isinstance(value, str)
    fits = value in names if is_word else isinstance(value, Mapping) or not a_table
    if not fits:
        other = "a table" if a_table else "a number"
        raise SettingsError(
            f"{where} is {_show(value)}, but must be {', '.join(map(_show, names))} or {other}"
        )
    return words[0] if is_word else inner[0]


def _typed(hint: Any, value: object, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _typed(arguments[0], value, where)
    if origin in (Union, types.UnionType):
        return None if value is None else _typed(_alternative(arguments, value, where), value, where)
    if origin in (tuple, list):
        if not isinstance(value, (list, tuple)):
            raise SettingsError(f"{where} is {_show(value)}, but must be a list")
        return origin(_decode(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is typing.Literal:
        # The types are compared because True == 1.
        if not any(value == a and type(value) is type(a) for a in arguments):
            raise SettingsError(
                f"{where} is {_show(value)}, but must be one of {', '.join(map(_show, arguments))}"
            )
        return value
    if dataclasses.is_dataclass(hint):
        return decode(hint, value, where)  # type: ignore[arg-type]
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        if not isinstance(value, dict):
            raise SettingsError(f"{where} is {_show(value)}, but must be a table")
        return {k: _decode(arguments[1], v, _join(where, k)) for k, v in value.items()}
    return _plain(hint, value, where)


def _plain(hint: Any, value: object, where: str) -> Any:
    if hint is Any:
        return value
    if hint is ByteSize:
        if (size := ByteSize.from_toml(value)) is None:
            hint_words = likely_size(value)
            raise SettingsError(
                f"{where} is {_show(value)}, but must be a whole number of bytes, or {FORM}{hint_words}"
            )
        return size
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise SettingsError(f"{where} is too large a number") from None
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        words = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
        raise SettingsError(f"{where} is {_show(value)}, but must be {words.get(hint, hint)}")
    return value


def _unknown(path: str, key: str, known: list[str]) -> str:
    return f"{path} is not a setting; {there_are(key, sorted(known))}"


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def toml_literal(value: object) -> str:
    """Return a value as it is written in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return '"' + CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", escaped) + '"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_literal(v) for v in value) + "]"
    if isinstance(value, Mapping):  # a table inside a list
        return "{" + ", ".join(f"{_key(k)} = {toml_literal(v)}" for k, v in value.items()) + "}"
    return repr(value)


def _key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else toml_literal(key)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, (list, tuple)) and bool(value) and all(isinstance(v, Mapping) for v in value)
    )


def _copy(table: Table) -> Table:
    return {k: _copy(v) if isinstance(v, dict) else v for k, v in table.items()}


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _show_number(value: object) -> str:
    """Return a number on one line; a large whole number has the underscores that its bounds have."""
    is_large = type(value) is int and USUAL_DIGITS < len(_show(value)) <= LONGEST_SHOWN
    return f"{value:_}" if is_large else _show(value)


def _show(value: object) -> str:
    """Return a value on one line, shortened if it is very long."""
    try:
        text = toml_literal(value) if isinstance(value, (str, bool, int, float, list)) else f"{value!r}"
    except ValueError:  # Python does not write an integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
