"""The first weights of a run's network from a file, and the choice of a part of the network that is not trained.

Without such a file, the first weights are drawn at random. The plan names the file by its hash. Each party has the
file in its folder of weights. The command `protofleet weights` puts the file into this folder.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final, Literal, TypeAlias

from protofleet.methods.nets.base import Net
from protofleet.methods.nets.packaged_weights import command_for, wrong_layer
from protofleet.methods.nets.weights_file import (
    WeightsFileError,
    as_first_weights,
    load_from,
    read_weights,
    sha256_of_file,
)
from protofleet.protocol.settings.reader import SettingsError

NAMED: Final = re.compile(r"(?P<file>[^@]+)@sha256:(?P<sha256>[0-9a-f]{64})")
Freeze: TypeAlias = Literal["backbone"]
MOST_NAMED: Final = 3  # A message names at most this many other files.
# Least similarity of a hash with a few wrong digits; two hashes that have nothing in common reach about 0.4.
SIMILAR: Final = 0.8


@dataclass(frozen=True)
class FirstWeights:
    """The [init] table: a file with the first weights of every party's network."""

    file: str
    """Name of the file of weights with its hash, as `protofleet weights` prints it, in the form
    `NAME@sha256:DIGITS` with 64 hexadecimal digits.
    """

    def __post_init__(self) -> None:
        if not NAMED.fullmatch(self.file):
            raise ValueError(
                f"file is {self.file[:200]!r}, but it must be a name and a hash: 'resnet18.safetensors@sha256:', for "
                "example, and 64 hex digits; `protofleet weights FILE` prints the name and the hash of a file"
            )

    @property
    def name(self) -> str:
        return PurePath(self.file.partition("@")[0]).name

    @property
    def sha256(self) -> str:
        return self.file.rpartition(":")[2]

    def load_into(self, model: Net) -> None:
        path = weights_folder() / f"{self.sha256}.safetensors"
        try:
            if (found := sha256_of_file(path)) != self.sha256:
                raise SettingsError(
                    f"{path} is damaged: its hash is {found}, not the hash in its name; {self._way_out()}"
                )
            load_from(model, as_first_weights(read_weights(path), model))
        except FileNotFoundError:
            raise SettingsError(
                f"the run begins with the weights {self.name}, but this machine has no file {path}"
                f"{self._stored(path)}"
            ) from None
        except (OSError, WeightsFileError) as error:
            reason = wrong_layer(self.name, model) or error
            raise SettingsError(f"the run's first weights, {self.name}, cannot be used: {reason}") from None

    def _stored(self, path: Path) -> str:
        """Return the end of the message about a missing file: the files that are stored, and the way out.

        A stored file whose hash is similar is the one that the user meant.
        """
        hashes = sorted(other.stem for other in path.parent.glob("*.safetensors"))
        if meant := difflib.get_close_matches(self.sha256, hashes, n=1, cutoff=SIMILAR):
            name = self.file.partition("@")[0]
            return f"; {self._way_out()}, or correct init.file: the stored file is {name}@sha256:{meant[0]}"
        return f"{_listed(hashes)}; {self._way_out()}"

    def _way_out(self) -> str:
        if command := command_for(self.name):
            return f"run `{command}` on this machine"
        return f"bring {self.name} to this machine and run `protofleet weights {self.name}`"


def _listed(hashes: list[str]) -> str:
    return f" (it has {', '.join(hashes[:MOST_NAMED])})" if hashes else ""


def weights_folder() -> Path:
    """Return $PROTOFLEET_DATA/weights, or ~/.cache/protofleet/weights if the variable is not set."""
    try:
        data = Path(os.environ.get("PROTOFLEET_DATA") or Path.home() / ".cache" / "protofleet")
    except RuntimeError:  # The user has no entry in the user database, as in some containers.
        raise SettingsError(
            "this user has no home folder for files of weights; set the environment variable PROTOFLEET_DATA"
        ) from None
    return data / "weights"
