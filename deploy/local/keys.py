"""Keys of a federation on one machine. Devices in the field make their own."""

from __future__ import annotations

from pathlib import Path

from protofleet.protocol.security.keys import Keys, load_keys, save_keys, save_public
from protofleet.protocol.wire.names import COORDINATOR


def make_keys(folder: Path, name: str) -> None:
    """A key pair under `folder`, unless it is there already; devices' public keys go to `public/`."""
    path = folder / f"{name}.key"
    keys = load_keys(path) if path.exists() else new_keys(path)
    public = folder / f"{name}.pub" if name == COORDINATOR else folder / "public" / f"{name}.pub"
    save_public(public, keys.public)


def new_keys(path: Path) -> Keys:
    keys = Keys.new()
    save_keys(path, keys)
    return keys
