"""Rebuild a model from its card and its tensors, in a folder or on a board."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from protofleet.methods.contract.overview import NoSamples
from protofleet.methods.parts.rules import Classifier, Gaussians, Linear, MeanOfDraws, Nearest, Rule
from protofleet.methods.served.card import Card, CardError, plan_of, sha256_of_tensors
from protofleet.methods.served.served import NearestAtOnce, Served
from protofleet.protocol.settings.reader import SettingsError


def described(rule: nn.Module) -> dict[str, Any]:
    """Return the description of a rule for a card."""
    return {"kind": rule.kind, **rule.settings()} if isinstance(rule, Rule) else {"kind": "custom"}


def words_of(rule: Mapping[str, Any]) -> str:
    """Return a short description of a card's rule, such as `nearest, cosine`."""
    return ", ".join(str(value) for value in rule.values() if isinstance(value, str)) + (
        ", sphere" if rule.get("sphere") else ""
    )


def rebuild(card: Card, tensors: Mapping[str, Tensor]) -> Served:
    """Return the model of a card and tensors.

    Raise CardError if card and tensors do not belong together, or if this version cannot make such a model.
    """
    if sha256_of_tensors(tensors) != card.tensors:
        raise CardError("the tensors are not those of the card: their SHA-256 differs")
    # The files of the run's first weights and public set are not needed, because `tensors` has all weights.
    plan = replace(plan_of(card), init=None, public=None)
    try:
        half = plan.client_half(NoSamples(), "", card.network)
        rule = _rule(card.rule, half.model.head, tensors)
        model = Served(card.input, half.encoder(half.rule()), rule)
        model.load_state_dict(dict(tensors))
        _demand_scores(model, card)
    except (SettingsError, RuntimeError, KeyError, TypeError, ValueError, IndexError) as error:
        line = " ".join(str(error).split())[:300]
        raise CardError(f"no model can be made from this card and its tensors: {line}") from None
    return model


def _demand_scores(model: Served, card: Card) -> None:
    """Raise ValueError if the scores of one sample do not have one number for each class of the card."""
    with torch.no_grad():
        found = tuple(model(card.input.drawn(1)).shape)
    if found != (1, len(card.classes)):
        raise ValueError(
            f"its scores have the shape {list(found)}, but the card has {len(card.classes)} classes"
        )


def _rule(said: Mapping[str, Any], head: nn.Module, tensors: Mapping[str, Tensor]) -> Rule:
    make = KINDS.get(str(said.get("kind")))
    if make is None:
        raise CardError(
            f"the card's rule is {str(said.get('kind'))[:64]!r}, but this version knows only {', '.join(KINDS)}; "
            "use the exported model itself"
        )
    return make(said, head, tensors)


def _classifier(said: Mapping[str, Any], head: nn.Module, tensors: Mapping[str, Tensor]) -> Rule:
    return Classifier(head, sphere=said["sphere"] is True)


def _nearest(said: Mapping[str, Any], head: nn.Module, tensors: Mapping[str, Tensor]) -> Rule:
    rows, places = tensors["rule.rows"], tensors["rule.places"]
    missing = -math.inf if said["missing"] is None else float(said["missing"])
    if said["metric"] not in ("squared", "euclidean", "cosine"):
        raise CardError(
            f"the rule's metric is {str(said['metric'])[:64]!r}, which this version does not know"
        )
    if places.numel() and not 0 <= int(places.min()) <= int(places.max()) <= len(rows):
        raise CardError("an index in the rule's `places` is beyond the rule's rows")
    rule = Nearest(rows, places.new_zeros(len(rows)), 1, said["metric"], missing=missing)
    rule.places = places
    return NearestAtOnce.like(rule)


def _linear(said: Mapping[str, Any], head: nn.Module, tensors: Mapping[str, Tensor]) -> Rule:
    weight, bias, known = (tensors[f"rule.{name}"] for name in ("weight", "bias", "known"))
    return Linear(weight, bias, known.bool(), normalised=said["normalised"] is True)


def _gaussians(said: Mapping[str, Any], head: nn.Module, tensors: Mapping[str, Tensor]) -> Rule:
    means, scales, offsets = (tensors[f"rule.{name}"] for name in ("means", "scales", "offsets"))
    return Gaussians(means, scales, offsets, normalised=said["normalised"] is True)


def _mean_of_draws(said: Mapping[str, Any], head: nn.Module, tensors: Mapping[str, Tensor]) -> Rule:
    return MeanOfDraws(head, tensors["rule.noise"].clone())


KINDS: Final[Mapping[str, Callable[[Mapping[str, Any], nn.Module, Mapping[str, Tensor]], Rule]]] = {
    Classifier.kind: _classifier,
    Nearest.kind: _nearest,
    Linear.kind: _linear,
    Gaussians.kind: _gaussians,
    MeanOfDraws.kind: _mean_of_draws,
}
