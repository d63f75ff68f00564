"""All attacks, by the kinds of arrays to which they apply. A method gets the attacks of the kinds that it sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from protofleet.lab.leakage.attacks import (
    class_rows,
    decoder_networks,
    feature_rows,
    gradient_inversion,
    mixtures,
    second_moments,
    sent_weights,
)
from protofleet.lab.leakage.finding import Attacker, Result
from protofleet.lab.leakage.scene import Scene

Find: TypeAlias = Callable[[Scene], Sequence[Result]]


@dataclass(frozen=True)
class Attack:
    """An attack on the answers of a device. It finds nothing if the arrays do not have the form that it needs."""

    name: str
    kinds: tuple[str, ...]  # An answer with an array of one of these kinds is attacked.
    find: Find
    needs_truth: bool = True
    needs_network: bool = False  # Whether the attacker needs the network that makes the features.
    thorough: bool = False  # Whether it takes seconds on each device, so that it runs only on request.
    # Returns the least attacker who can do it, so that a slow attack need not be run to know it; None if unknown.
    least: Callable[[Scene], Attacker | None] = lambda scene: None


MEANS: Final = ("prototypes", "means", "targets")
ATTACKS: Final = (
    Attack("share and mask of mixed rows", ("features",), feature_rows.structure, needs_truth=False),
    Attack("features", ("features",), feature_rows.recovery),
    Attack("membership by the nearest row", ("features",), feature_rows.membership, needs_network=True),
    Attack("retrieval", ("features",), feature_rows.retrieval, needs_network=True),
    Attack("inversion of rows", ("features",), feature_rows.inversion, needs_network=True),
    Attack(
        "information in the upload", ("features",), feature_rows.information, needs_network=True, thorough=True
    ),
    Attack("decoder network", ("features",), decoder_networks.of_rows, needs_network=True, thorough=True,
           least=decoder_networks.least),
    Attack("membership by the class row", MEANS, class_rows.membership, needs_network=True),
    Attack("inversion of class rows", MEANS, class_rows.inversion, needs_network=True),
    Attack("decoder network of class rows", MEANS, decoder_networks.of_class_rows, needs_network=True, thorough=True,
           least=decoder_networks.least),
    Attack("smallest class and label distribution", ("counts",), class_rows.small_classes, needs_truth=False),
    Attack("membership by the loss", ("weights",), sent_weights.membership),
    Attack("label distribution from the head's bias", ("weights",), sent_weights.label_distributions),
    Attack(gradient_inversion.CLOSED, ("weights",), gradient_inversion.closed_form, thorough=True),
    Attack(gradient_inversion.LABELS, ("weights",), gradient_inversion.labels, thorough=True),
    Attack(gradient_inversion.OPTIMISED, ("weights",), gradient_inversion.optimised, thorough=True),
    Attack(
        "membership by second moments", ("factor", "gram", "scatter"), second_moments.membership,
        needs_network=True,
    ),
    Attack("rank and counts", ("factor",), second_moments.structure, needs_truth=False),
    Attack("membership by the density", ("mixtures",), mixtures.membership, needs_network=True),
)  # fmt: skip


def kinds_in(scene: Scene) -> set[str]:
    """Return the kinds of the arrays in the answers of a round."""
    of = scene.observed.plan.variant.kinds.of
    return {of(name) for task in scene.tasks for name in task.answer}


# Kinds of arrays that only describe other arrays, and are read together with them.
DESCRIBING: Final = frozenset({"labels", "scales", "samples", "tail", "steps", "lacks"})


def without_attack(kinds: set[str]) -> set[str]:
    """Return the kinds to which no attack applies."""
    return kinds - DESCRIBING - {kind for attack in ATTACKS for kind in attack.kinds}
