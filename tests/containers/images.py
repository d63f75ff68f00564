"""The product's images, built once a session on the tests' base images; and stand-ins for pulled ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

from protofleet.deploy.images.build import Build, build
from tests.containers.engine import Engine

STAND_INS = Path(__file__).parent / "debian.Dockerfile"


def wheel_folders() -> tuple[Path, ...]:
    """Return the folders that this machine's pip reads before an index.

    They may have a torch for CPUs alone.
    """
    told = subprocess.run(
        ["python3", "-m", "pip", "config", "get", "global.find-links"], capture_output=True, text=True
    )
    found = (Path(word) for word in told.stdout.split())
    return tuple(folder for folder in found if folder.is_dir())


def product(engine: Engine, *targets: str, base: str = "") -> list[str]:
    """Build images of the product and return their names.

    If there are wheels, PyPI has the rest; otherwise torch's own index is used, as for all users.
    """
    wheels = wheel_folders()
    made = []
    for target in targets:
        wanted = Build(target, base or engine.base, "" if wheels else None, wheels)
        build(wanted, {"DOCKER_HOST": engine.host}, built_in(engine))
        made.append(wanted.tag)
    return made


def built_in(engine: Engine) -> Path:
    """Return the file with the ids of images that were built in this engine; other engines have other ids."""
    return engine.folder / "images.json"


def stand_in(engine: Engine, name: str) -> str:
    tag = f"protofleet-local/{name}"
    if not engine.has_image(tag):
        base = engine.debian13() if name == "rabbitmq" else engine.debian
        words = ("build", "-q", "-t", tag, "--target", name, "--build-arg", f"BASE={base}", "-")
        engine.docker(*words, stdin=STAND_INS.read_text())
    return tag
