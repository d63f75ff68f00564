"""Keys for benchmarks. They need no root key of a federation."""

from __future__ import annotations

from pathlib import Path

from protofleet.protocol.security.keys import Keys, load_keys, save_keys, save_public
from protofleet.protocol.wire.names import COORDINATOR


def make_keys(folder: Path, name: str) -> None:
    """Make a key pair under `folder` if there is none. The public keys of devices are written to `public/`."""
    path = folder / f"{name}.key"
    if path.exists():
        keys = load_keys(path)
    else:
        keys = Keys.new()
        save_keys(path, keys)
    public = folder / f"{name}.pub" if name == COORDINATOR else folder / "public" / f"{name}.pub"
    save_public(public, keys.public)
