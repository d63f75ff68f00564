"""Store the id of each image that was built on this machine.

A name can later be given to another image. An id always names the same image.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from protofleet.protocol.security.keyfiles import write_file
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.installation.checkout import build_folder

IDS_FILE: Final = build_folder() / "images.json"
ID: Final = re.compile(r"sha256:[0-9a-f]{64}")
# A name of this form always names the same image.
FIXED_NAME: Final = re.compile(r"(^|@)sha256:[0-9a-f]{64}$")
ImageIds = Mapping[str, str]  # The id of each image by its name.


def save_id(name: str, path: Path = IDS_FILE, environment: Mapping[str, str] | None = None) -> None:
    if not (found := image_id(name, environment)):
        raise RunError(
            f"{name} was built, but this Docker engine does not have the image; run `docker buildx use default`, and "
            "build the image again"
        )
    table = {**read_ids(path), _without_latest(name): found}
    write_file(path, (json.dumps(table, indent=1, sort_keys=True) + "\n").encode(), durable=False)


def read_ids(path: Path = IDS_FILE) -> ImageIds:
    try:
        table = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} cannot be read ({error}); remove this file, and run `make images`, which writes it again"
        ) from None
    if not isinstance(table, dict) or not all(ID.fullmatch(str(found)) for found in table.values()):
        raise RunError(
            f"{path} is not a list of images and their ids; remove this file, and run `make images`, which writes "
            "it again"
        )
    return table


def ids_of(names: Iterable[str], built: ImageIds) -> dict[str, str]:
    """Return the ids of the images that were built here, by name; a stack starts these images by their ids.

    Raise RunError if the engine lacks such an image, or has another image with its name.
    """
    wanted = {name: built[_without_latest(name)] for name in names if _without_latest(name) in built}
    for name, recorded in wanted.items():
        if (found := image_id(name)) == recorded:
            continue
        if not found:
            raise RunError(
                f"{name} was built here as {recorded}, but this Docker engine does not have the image; build it with "
                "`make images`"
            )
        raise RunError(
            f"{name} is not the image that was built here: its id is {found}, not {recorded}; `make images` builds "
            f"the image again, and --with starts another image by its id (docs/containers.md, Pinning)"
        )
    return wanted


def image_id(name: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the id of an image; "" if the engine has no image of that name."""
    done = subprocess.run(
        ["docker", "image", "inspect", "--format", "{{.Id}}", name],
        env={**os.environ, **(environment or {})}, capture_output=True, text=True,
    )  # fmt: skip
    if not done.returncode:
        return done.stdout.strip()
    if "no such image" in done.stderr.lower():
        return ""
    raise RunError(
        f"docker cannot show the id of the image {name}: {(done.stderr.strip() or '?').splitlines()[-1]}"
    )


def _without_latest(name: str) -> str:
    return name.removesuffix(":latest")
