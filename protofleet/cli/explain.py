"""Implement `protofleet methods NAME`: show the first lines of the method's file, and its settings with defaults."""

from __future__ import annotations

import sys
import types
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from protofleet.lab.local.own_plugins import own_plugins
from protofleet.lab.report.leakage_file import control_words, interval
from protofleet.lab.report.measured_leakage import read_measured_leakage
from protofleet.methods.contract.base import Method
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.overview import Reference
from protofleet.methods.contract.plan import Plan
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.plugins.packages import installed
from protofleet.protocol.settings.reader import SettingsError


def explanation(name: str) -> str:
    method, doc = known_method(name)
    networks = "each device may have a network of its own" if method.mixed_networks else "one network for all"
    head = f"{doc}\n\nIts paper reports the {method.reports} model; {networks}.\n\n[method] settings"
    hints = get_type_hints(method.Hyper)
    settings = [setting(f, hints[f.name]) for f in fields(method.Hyper)]
    return "\n".join([head, *settings, *given_away(name)])


def given_away(name: str) -> list[str]:
    """Return what attacks on the answers of a built-in method have found; nothing if it was not measured."""
    found = read_measured_leakage().get(name)
    if found is None:
        return []
    figures = [
        f"  {row.attacker}  {row.attack}: {row.measure} {interval(row)}, control {control_words(row) or 'none'}"
        for row in found.worst
        if row.sound
    ]
    head = (
        f"An answer gives away (bundled digits, {found.planned_rounds} rounds, worst device; docs/leakage.md)"
    )
    return ["", head, *(figures or ["  nothing that was attacked"])]


def settings_of(name: str) -> dict[str, Any]:
    """Return the settings of a method, for programs."""
    method, _ = known_method(name)
    hints = get_type_hints(method.Hyper)
    settings = {
        f.name: {"default": None if f.default is MISSING else f.default, "values": choices(hints[f.name])}
        for f in fields(method.Hyper)
    }
    return {
        "name": name, "paper": method.paper, "measured": method.reports, "mixed_networks": method.mixed_networks,
        "settings": settings,
    }  # fmt: skip


def known_method(name: str) -> tuple[Method, str]:
    """Return a method and the text at the beginning of its file.

    The file may be a file of the user or of a package.
    """
    if name.endswith(".py"):
        return of_plugin(Path(name).stem, own_plugins([name]).hashes[0])
    if name not in names() and (packaged := installed("method").get(name)) is not None:
        return of_plugin(name, packaged.sha256)
    try:
        return load(name), (sys.modules[f"protofleet.methods.{name}"].__doc__ or "").strip()
    except LookupError as error:
        raise SettingsError(str(error).strip('"')) from None


def of_plugin(name: str, sha256: str) -> tuple[Method, str]:
    """Return the method of a plug-in and a text about the method.

    The text is the docstring of the plug-in's file, followed by the bytes of the arrays that a device sends and
    receives in a round. For built-in methods, docs/methods.md lists these bytes.
    """
    method, reference = load(name, sha256), Reference()
    plan = Plan(
        name, reference.classes, 1, size=reference.size, network=reference.network, plugins={"method": sha256}
    )
    doc = (sys.modules[method.Client.__module__].__doc__ or "").strip()
    if method.cost is None:
        return method, f"{doc}\n\nThis method states no cost."
    cost = method.cost(reference.sizes(plan))
    up, down = sum(cost.bytes_up.values()), sum(cost.bytes_down.values())
    return method, f"{doc}\n\nBytes of arrays up {up:,}, down {down:,}, with {reference.describe()}."


def setting(field: Field[Any], hint: object) -> str:
    """Return `name = default`, and the values that are allowed."""
    default = "(left out)" if field.default in (None, MISSING) else shown(field.default)
    common = field.name in {f.name for f in fields(LocalHyper)}
    return f"  {field.name:22} = {default:14} {choices(hint)}{' (local training)' if common else ''}"


def choices(hint: object) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(map(shown, get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType):
        return f"{choices(get_args(hint)[0])} or left out"
    return {int: "whole number", float: "number", bool: "true or false", str: "text"}.get(hint, str(hint))  # type: ignore[call-overload, no-any-return]


def shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
