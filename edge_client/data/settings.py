"""The settings of a device's data, which are a part of the device's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from protofleet.edge_client.data.catalog import SOURCES, find
from protofleet.edge_client.data.scaling import PIXELS, UNSCALED, Scale
from protofleet.edge_client.data.shares import SPLITS
from protofleet.methods.plugins.packages import installed
from protofleet.protocol.settings.bounds import LARGEST_COUNT, LARGEST_FACTOR, Channels, Pixels, Seed, Within
from protofleet.protocol.settings.input_shape import USUAL_CHANNELS, USUAL_SIDE, Axes, InputShape, shape_of
from protofleet.protocol.settings.reader import demand_within, encode
from protofleet.protocol.settings.suggest import there_are

DEFAULT_SOURCE: Final = "digits"
# Settings that have no effect on data from a user's function, which makes these choices itself.
THEIR_OWN_AFFAIR: Final = ("fraction", "samples", "own_test", "test_samples", "classes", "scale")
MIN_TRAINING_SAMPLES = 2  # BatchNorm cannot learn from one sample.
ROUNDING = 1e-9  # With rounding errors, `fraction * parts` may be a little more than 1.
MAX_SAMPLES = 1_000_000_000

Parts = Annotated[int, Within(1, LARGEST_COUNT)]
OwnTest = Annotated[float, Within(0, 0.9, above=True)]
Fraction = Annotated[float, Within(0, 1, above=True)]
Samples = Annotated[int, Within(MIN_TRAINING_SAMPLES, MAX_SAMPLES)]


@dataclass(frozen=True)
class DataSettings:
    """The settings of the data with which a device trains and is tested."""

    source: str = DEFAULT_SOURCE
    """Source of the data (`protofleet data` lists the sources)."""
    root: str = ""
    """Folder of the data; empty means the folder with the source's name in `$PROTOFLEET_DATA`, or else in
    `~/.cache/protofleet`.
    """
    domain: str = ""
    """Domain of the source; empty or the source's name means its only domain, or all domains together."""
    split: str = "domain"
    """Division of a domain between its clients, `domain` (the same mix of classes), `iid` (drawn at random)
    or `dirichlet` (a skewed mix).
    """
    part: Annotated[int, Within(0, LARGEST_COUNT - 1)] = 0
    """Index of this client's share, from 0."""
    parts: Parts = 1
    """Number of shares into which the data are divided; clients that share a domain must agree on every key but
    `part`.
    """
    beta: Annotated[float, Within(0.001, LARGEST_FACTOR)] = 0.3
    """Parameter of the Dirichlet draw; a smaller value gives a larger skew."""
    fraction: Fraction | None = None
    """Part of the domain's training samples for each client, such as 0.1 for a tenth; if left out, a client has its
    whole share.
    """
    samples: Samples | None = None
    """Largest number of samples for training and validation together; if left out, there is no limit."""
    own_test: OwnTest | None = None
    """Part of the client's own samples that is used as its test set; if left out, the published test set is used."""
    test_samples: Annotated[int, Within(1, MAX_SAMPLES)] | None = None
    """Largest number of test samples; if left out, there is no limit."""
    validation: Annotated[float, Within(0, 0.9)] = 0.1
    """Part of the training samples that is held out for validation; 0 means no validation."""
    size: Pixels = USUAL_SIDE
    """Side in pixels to which images are resized."""
    channels: Channels = USUAL_CHANNELS
    """Number of channels to which images are converted, 3 for colour or 1 for shades of grey."""
    shape: Axes = ()
    """Shape of a sample, [F] for vectors, [C, T] for series or [C, H, W] for images; empty means that `size` and
    `channels` are used.
    """
    scale: Scale | None = None
    """Scale of samples that are not pixels, if their source has no scale; it must be the same on all devices."""
    inbox: str = ""
    """Folder to which files `<class>/<file>` are added while the device runs; empty means none."""
    inbox_seconds: Annotated[float, Within(0.1, 86_400)] = 10.0
    """Seconds between two looks into the inbox."""
    classes: tuple[str, ...] = ()
    """Names of the classes to keep, in this order; empty means the source's usual classes."""
    seed: Seed = 0
    """Seed of every draw from the data; the published test set does not depend on this seed."""
    file: str = ""
    """Path of a Python file whose `DATA` gives the data; empty means that `source` gives them."""
    name: str = ""
    """Name of the data that `file` gives; empty means the name of the file."""

    def __post_init__(self) -> None:
        demand_within(self)
        self._name_own()
        self._check_names()
        self._check_shares()

    @property
    def input_shape(self) -> InputShape:
        """Return the shape of one sample at the input of a network."""
        stated = None if self.is_plugin else find(self.source).shape
        axes = self.shape or (stated.axes if stated else ())
        return shape_of(axes, self.size, self.channels)

    @property
    def scaling(self) -> Scale:
        """Return the scale that turns the numbers of the source into the input of a network."""
        if self.scale is not None:
            return self.scale
        if self.is_plugin:
            return UNSCALED
        source = find(self.source)
        return source.scale or (PIXELS if source.ranks == (3,) else UNSCALED)

    def check_shape(self) -> None:
        """Raise ValueError if the shape or the scale in the settings does not fit the source.

        The constructor does not check the shape or the scale. An experiment with several sources first makes settings
        that all sources share, and these shared settings need not fit any source.
        """
        shape = self.input_shape
        if self.is_plugin:
            return
        source = find(self.source)
        if problem := source.problem_with(self.source, shape):
            raise ValueError(problem)
        if self.scale is None:
            return
        if source.ranks == (3,) or source.scale is not None:
            raise ValueError(f"scale is set, but {self.source} has a scale of its own; leave scale out")
        if problem := self.scale.problem_with(shape):
            raise ValueError(problem)

    @property
    def is_ours(self) -> bool:
        """Return whether protofleet has a source of this name."""
        return self.source in SOURCES

    @property
    def is_plugin(self) -> bool:
        return bool(self.file) or (not self.is_ours and self.source in installed("data"))

    def _name_own(self) -> None:
        if self.name and not self.file:
            raise ValueError(
                f"name is {self.name!r}, but the setting name is used only together with data.file; choose a source "
                "with data.source"
            )
        if self.file and self.source == DEFAULT_SOURCE:
            object.__setattr__(self, "source", self.name or Path(self.file).stem)
        for key in THEIR_OWN_AFFAIR if self.is_plugin else ():
            if (value := getattr(self, key)) not in (None, ()):
                raise ValueError(
                    f"{key} is {encode(value)}, but the function of {self.source} gives the data and makes "
                    "this choice; leave out this setting"
                )

    def _check_names(self) -> None:
        known = () if self.is_plugin else find(self.source).domains
        if known and self.domain not in ("", self.source, *known):
            others = f"in {self.source} {there_are(self.domain, known)}, or leave it empty for all"
            raise ValueError(f"domain is {self.domain!r}; {others}")
        if self.domain in (".", "..") or any(mark in self.domain for mark in "/\\"):
            raise ValueError(f"domain is {self.domain!r}, it must be the plain name of a folder in the root")
        if self.split not in SPLITS:
            raise ValueError(f"split is {self.split!r}, it must be one of {', '.join(SPLITS)}")
        if len(self.classes) == 1 or len(set(self.classes)) < len(self.classes):
            raise ValueError(
                f"classes is {list(self.classes)}; it must be empty, or name at least two classes, each only once"
            )

    def _check_shares(self) -> None:
        if self.part >= self.parts:
            raise ValueError(
                f"part is {self.part} and parts is {self.parts}; part must be from 0 to parts - 1"
            )
        if self.fraction is not None and not 0 < self.fraction * self.parts <= 1 + ROUNDING:
            raise ValueError(
                f"fraction is {self.fraction}, it must be above 0 and at most {1 / self.parts:.3g}, "
                f"which is an equal share for each of {self.parts} clients of the domain"
            )
