"""The table in docs/methods.md of what an answer of each newer method gives away, and to whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import fill
from typing import Final

WIDTH: Final = 120  # Longest line of the list of methods.
AS_FEDAVG: Final = "a model, as in FedAvg"
MEANS: Final = "the mean feature of each class, and the number of its samples: the label distribution"
HASHES: Final = "; every device gets a table of the devices, by hashes of their names"
EACH: Final = "no: the server needs each answer"
BY_STEPS: Final = "only if devices divide their changes by their steps themselves"

# Method -> what an answer gives away, and whether secure aggregation would fit.
GIVEN_AWAY: Final = {
    "fedncm": (MEANS, "yes, with sums in place of means"),
    "fedcof": (MEANS, "no: the server needs the scatter of the devices' means"),
    "fed3r": (
        "the Gram matrix of the features, class means and counts; with fewer samples than numbers in a feature, the "
        "matrix spans exactly the samples, and shows whether a given sample is one of them",
        "yes",
    ),
    "ghofl": (
        "class means, counts, and with `nb` the mean squares of each class, with `lda` a covariance, with `qda` a "
        "covariance of each class; for covariances of few samples, see `fed3r`",
        "yes",
    ),
    "fedpft": ("a mixture of each class; a part of few samples shows these samples", EACH),
    "fedgram": (
        "a sketch of the samples, class sums, and counts when the device joins; the sketch shows whether a given "
        "sample is one of them",
        'no: factors cannot be added; `form = "gram"` sends what can be added',
    ),
    "tinyproto": (
        "a few numbers of each class mean, and counts when the device joins",
        "with `aps`, but without the check of each row's length",
    ),
    "scaffold": (
        f"a model and a number of steps; with `send_controls`, also a mean gradient{HASHES}", BY_STEPS,
    ),
    "feddyn": (f"{AS_FEDAVG}{HASHES}", "yes"),
    "fedavgm": (AS_FEDAVG, "yes"),
    "fedadam": (AS_FEDAVG, "yes"),
    "fedyogi": (AS_FEDAVG, "yes"),
    "fedadagrad": (AS_FEDAVG, "yes"),
    "fednova": ("a model and a number of steps", BY_STEPS),
    "fedper": ("a model without its head, so less than in FedAvg", "yes"),
    "ditto": (AS_FEDAVG, "yes"),
    "apfl": (AS_FEDAVG, "yes"),
    "fedgh": ("the mean feature of each class that the device holds", EACH),
    "fedpcl": (
        "the direction of the mean feature of each class, **which every other device receives**, with the classes "
        "that each device holds",
        EACH,
    ),
    "feddap": (
        "a model, and the mean feature of each class; **in a domain of one device, every other device receives these "
        "means**",
        EACH,
    ),
    "fedheal": (AS_FEDAVG, "no: each answer has its own mask and weight"),
}  # fmt: skip

TOP: Final = """
## What an answer gives away

[leakage.md](leakage.md) shows what attacks on an answer of each method have found.

The coordinator reads every answer, except in a run with [masked sums](privacy.md#masked-sums), in which it sees only
sums. The last column says which methods need no more than sums. A run with another method is refused, and the message
names the methods that take part.

A mean of one sample is that sample's feature. So these methods send nothing about a class of which a device has fewer
than `method.least_samples` samples, by default 5:
{means}.

These methods have the same setting, and its default is 1, because they are implemented as in their papers:
{papers}.
`protofleet init --method` writes `least_samples = 5` for them. The plan of the run states the number, so each device
knows it. A device of an earlier version refuses such a plan.

- **What is left out** is the row of the class, with its label and its count. In a class with enough samples, FedPLVM
  and FedPLCC make one cluster of all clusters with fewer samples. FedPall leaves the features of the class out of
  `mix` too.
- **FedHP** sends a full table. The row of such a class is the received one.
- **What the coordinator still learns:** the number of samples that a device states, and in FedHP, TinyProto, FedGram
  and FedGen the number of each class. A model that is sent has been trained with all samples.
- **ADCOL** sends the feature of every sample, without labels, so it has no such setting.

| method | an answer gives away | secure aggregation would fit |
|---|---|---|
"""


def given_away(least_samples: Mapping[str, int]) -> str:
    """Return the section; the argument has the default of the setting `least_samples` of each method that has it."""
    rows = "".join(f"| `{name}` | {what} | {fits} |\n" for name, (what, fits) in GIVEN_AWAY.items())
    careful = [name for name, least in least_samples.items() if least > 1]
    papers = [name for name in least_samples if name not in careful]
    return TOP.format(means=listed(careful), papers=listed(papers)) + rows


def listed(methods: Iterable[str]) -> str:
    return fill(", ".join(f"`{name}`" for name in methods), WIDTH)
