"""python -m protofleet.deploy.images build edge coordinator demo | sizes: the program behind `make images`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from protofleet.deploy.images.build import TARGETS, Build, base_image, build, size_table, unpinned_warning
from protofleet.deploy.images.docker_engine import require_docker
from protofleet.deploy.images.image_ids import IDS_FILE
from protofleet.runtime.command.errors import RunError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m protofleet.deploy.images", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("command", choices=("build", "sizes"))
    parser.add_argument(
        "targets", nargs="*", default=["edge", "coordinator", "demo"], metavar="IMAGE", help=" ".join(TARGETS)
    )
    parser.add_argument("--base", default="", help="base image; pin it by its digest: name@sha256:...")
    parser.add_argument("--torch-index", help="package index of torch; '' means only PyPI")
    parser.add_argument(
        "--wheels",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder of wheels that is searched before any index; may be repeated",
    )
    parser.add_argument(
        "--tag",
        default="",
        metavar="NAME",
        help="name of the image, if only one image is built (default: protofleet/IMAGE)",
    )
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="NAME=VERSION",
        help="version of a package that replaces the locked version, for example torch=2.7.1",
    )
    parser.add_argument("--platform", default="", help="platform of the images, for example linux/arm64")
    parser.add_argument("--pinned", action="store_true", help="refuse a base image without a digest")
    parser.add_argument(
        "--built",
        type=Path,
        default=IDS_FILE,
        metavar="FILE",
        help="file to which the ids of the built images are written",
    )
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"there is no image {sorted(unknown)[0]!r}; the images are {', '.join(TARGETS)}")
    if options.tag and len(options.targets) > 1:
        parser.error(f"--tag can name only one image, but {len(options.targets)} images are built")
    try:
        pins = tuple((name, version) for name, _, version in (pin.partition("=") for pin in options.pin))
        given = (
            options.base,
            options.torch_index,
            tuple(options.wheels),
            pins,
            options.platform,
            options.tag,
        )
        builds = [Build(target, *given) for target in options.targets]
        if options.command == "build" and (warning := unpinned_warning(map(base_image, builds))):
            if options.pinned:
                raise RunError(warning)
            print(f"images: {warning}", file=sys.stderr)
        require_docker(*(("buildx",) if options.command == "build" else ()))
        for wanted in builds if options.command == "build" else []:
            build(wanted, built=options.built)
        print(size_table([wanted.tag for wanted in builds]))
    except RunError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
