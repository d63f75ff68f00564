"""The product's own images, built once a session on the base images of the tests; and stand-ins for pulled ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

from protofleet.deploy.images.build import Build, build
from tests.containers.engine import Engine

STAND_INS = Path(__file__).parent / "debian.Dockerfile"


def wheel_folders() -> tuple[Path, ...]:
    """Where this machine's pip looks before it asks an index: a torch for CPUs alone may lie there."""
    told = subprocess.run(
        ["python3", "-m", "pip", "config", "get", "global.find-links"], capture_output=True, text=True
    )
    found = (Path(word) for word in told.stdout.split())
    return tuple(folder for folder in found if folder.is_dir())


def product(engine: Engine, *targets: str, base: str = "") -> list[str]:
    """Their names. With wheels at hand, PyPI has the rest; else torch's own index is asked, as for everybody."""
    wheels = wheel_folders()
    made = []
    for target in targets:
        wanted = Build(target, base or engine.base, "" if wheels else None, wheels)
        build(wanted, {"DOCKER_HOST": engine.host}, built_in(engine))
        made.append(wanted.tag)
    return made


def built_in(engine: Engine) -> Path:
    """Of this engine: what was built in others has other ids."""
    return engine.folder / "images.json"


def stand_in(engine: Engine, name: str) -> str:
    tag = f"protofleet-local/{name}"
    if not engine.has_image(tag):
        base = engine.debian13() if name == "rabbitmq" else engine.debian
        words = ("build", "-q", "-t", tag, "--target", name, "--build-arg", f"BASE={base}", "-")
        engine.docker(*words, stdin=STAND_INS.read_text())
    return tag
