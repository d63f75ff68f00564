"""Signing keys of a federation on one machine. Devices in the field make their own."""

from __future__ import annotations

from pathlib import Path

from protocol.seal import COORDINATOR, Identity, load_key, new_key, save_public


def make_keys(folder: Path, name: str) -> None:
    """A key pair under `folder`, unless it is there already; devices' public keys go to `public/`."""
    path = folder / f"{name}.key"
    key = load_key(path) if path.exists() else new_key(path)
    public = folder / f"{name}.pub" if name == COORDINATOR else folder / "public" / f"{name}.pub"
    save_public(public, Identity(name, 0, key).public)
