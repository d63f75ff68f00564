"""What a device's settings say about its data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edge_client.data.shares import SPLITS
from edge_client.data.sources import find

SIZES = (8, 512)  # pixels
CHANNELS = (1, 3)
LEAST = 2  # training samples: BatchNorm cannot learn from one
ROUNDING = 1e-9  # 3 * (1 / 3) may be a little more than 1


@dataclass(frozen=True)
class DataSettings:
    source: str = "digits"  # names() lists them
    root: str = ""  # folder of the data; "": <source> in $PROTOFLEET_DATA or else in ~/.cache/protofleet
    domain: str = ""  # "" or the source's own name: the only one, or all of them pooled
    split: str = "domain"  # domain: every share has the same mix of classes; dirichlet; iid: drawn at random
    part: int = 0  # which share this client has,
    parts: int = 1  # of so many. All clients that share must agree on everything but `part`
    beta: float = 0.3  # of the Dirichlet draw: the smaller, the more skewed
    fraction: float | None = None  # for each client, of the domain's training samples; None: its whole share
    samples: int | None = None  # at most so many for training and validation together
    own_test: float | None = None  # of the client's own samples, for its test; None: the published test set
    test_samples: int | None = None  # at most so many for the test
    validation: float = 0.1  # the share of the training samples that is held out
    size: int = 32  # images are brought to size x size
    channels: int = 3  # and to 3, or to 1: shades of grey
    classes: tuple[str, ...] = ()  # which to keep, in this order; (): the source's usual ones
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_names()
        self._check_shares()
        self._check_sizes()

    def _check_names(self) -> None:
        known = find(self.source).domains
        if known and self.domain not in ("", self.source, *known):
            raise ValueError(
                f"domain is {self.domain!r}; {self.source} has {', '.join(known)}, or leave it empty for all"
            )
        if self.domain in (".", "..") or any(mark in self.domain for mark in "/\\"):
            raise ValueError(f"domain is {self.domain!r}, it must be the plain name of a folder in the root")
        if self.split not in SPLITS:
            raise ValueError(f"split is {self.split!r}; there are {', '.join(SPLITS)}")
        if len(self.classes) == 1 or len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes is {list(self.classes)}, it must name two or more, each once, or none")

    def _check_shares(self) -> None:
        if self.parts < 1 or not 0 <= self.part < self.parts:
            raise ValueError(
                f"part is {self.part} of parts {self.parts}, it must be 0 to parts - 1, at least one"
            )
        if not (math.isfinite(self.beta) and self.beta > 0):
            raise ValueError(f"beta is {self.beta}, it must be above 0; 0.1 is very skewed, 100 hardly")
        if self.fraction is not None and not 0 < self.fraction * self.parts <= 1 + ROUNDING:
            raise ValueError(
                f"fraction is {self.fraction}, it must be above 0 and at most {1 / self.parts:.3g}, "
                f"as much as each of {self.parts} can have"
            )
        if self.own_test is not None and not 0 < self.own_test <= 0.9:
            raise ValueError(
                f"own_test is {self.own_test}, it must be above 0 and at most 0.9, "
                "or left out for the published test set"
            )

    def _check_sizes(self) -> None:
        if self.samples is not None and self.samples < LEAST:
            raise ValueError(f"samples is {self.samples}, it must be at least {LEAST}, or left out for all")
        if self.test_samples is not None and self.test_samples < 1:
            raise ValueError(
                f"test_samples is {self.test_samples}, it must be at least 1, or left out for all"
            )
        if not 0 <= self.validation <= 0.9:
            raise ValueError(f"validation is {self.validation}, it must be from 0 to 0.9")
        if self.channels not in CHANNELS:
            raise ValueError(f"channels is {self.channels}, it must be 1 (grey) or 3 (colour)")
        if not SIZES[0] <= self.size <= SIZES[1]:
            raise ValueError(f"size is {self.size} pixels, it must be from {SIZES[0]} to {SIZES[1]}")
