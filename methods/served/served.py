"""A model with its rule: it scales samples, and computes their class scores.

The model consists only of modules, so it can be exported, and run on a machine without the method.
"""

from __future__ import annotations

from copy import deepcopy

from torch import Tensor, nn

from protofleet.methods.contract.base import ClientHalf
from protofleet.methods.nets.base import Encoder
from protofleet.methods.parts.rules import Classifier, Nearest, Rule
from protofleet.methods.served.scaling import Input, Scaling
from protofleet.protocol.settings.suggest import there_are

# Name of the prediction that a half's `rule` makes. `other_rules` has the names of the other predictions.
PREDICT = "predict"


class Served(nn.Module):
    """A module that turns samples that are not scaled yet into class scores, [B, *shape] -> [B, C]."""

    def __init__(self, of: Input, encoder: Encoder, rule: Rule) -> None:
        super().__init__()
        self.scaling = Scaling(of)
        self.features, self.projector, self.rule = encoder.features, encoder.projector, rule
        self.requires_grad_(False).eval()

    def forward(self, samples: Tensor) -> Tensor:
        scores: Tensor = self.rule(self.projector(self.features(self.scaling(samples))))
        return scores


class NearestAtOnce(Nearest):
    """A rule that compares all rows in one step, with memory for B G D numbers.

    With the parent class, an exported graph would have a step for each row. Both classes give the same bits.
    """

    def near(self, z: Tensor) -> Tensor:
        if self.metric == "cosine":
            return super().near(z)
        squares = (z.unsqueeze(1) - self.rows).square().sum(dim=-1)
        return -squares if self.metric == "squared" else -(squares + 1e-12).sqrt()

    @classmethod
    def like(cls, rule: Nearest) -> NearestAtOnce:
        same = cls(rule.rows, rule.places.new_zeros(len(rule.rows)), 1, rule.metric, missing=rule.missing)
        same.places = rule.places
        return same


def ways_of(half: ClientHalf) -> list[str]:
    """Return the names of the ways in which this half can predict now."""
    return [PREDICT, *half.other_rules()]


def served(half: ClientHalf, of: Input, way: str = PREDICT) -> Served:
    """Return a copy of the model on the CPU; later training of the half does not change it.

    Raise LookupError for an unknown way.
    """
    if way not in ways_of(half):
        raise LookupError(f"the prediction mode {way!r} does not exist; {there_are(way, ways_of(half))}")
    rule = half.rule() if way == PREDICT else half.other_rules()[way]
    encoder, rule = deepcopy((half.encoder(rule), rule))
    return Served(of, encoder, as_exported(rule)).cpu()


def tensors_of(half: ClientHalf, rule: nn.Module) -> dict[str, Tensor]:
    """Return the same tensors as `served`, but do not copy them; the half does not change."""
    encoder, exported = half.encoder(rule), as_exported(rule)
    return {
        **encoder.state_dict(),
        **{f"rule.{name}": value for name, value in exported.state_dict().items()},
    }


def rules_of(half: ClientHalf) -> dict[str, nn.Module]:
    """Return the rules of the half. Each rule is under the name of its way to predict."""
    return {PREDICT: half.rule(), **half.other_rules()}


def as_exported(rule: nn.Module) -> Rule:
    """Return a rule that can be exported; a bare head becomes a classifier."""
    if isinstance(rule, Nearest):
        return NearestAtOnce.like(rule)
    return rule if isinstance(rule, Rule) else Classifier(rule)
