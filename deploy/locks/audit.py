"""make audit: known weaknesses of the packages that are pinned, as pip-audit finds them in a public database.

pip-audit lives in a virtual environment of its own, so that the scanner is no dependency of what it scans. Where
the scanner or the database cannot be reached, or does not know a package, one line says so, with exit code 3: not
found is not the same as none.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from protofleet.deploy.locks.lockfile import pinned
from protofleet.deploy.locks.tool import installed

SCANNER: Final = "pip-audit==2.10.1"
PINNED: Final = Path(__file__).parent.parent / "constraints.txt"
SCAN_SECONDS: Final = 600.0
CLEAN, FOUND, UNKNOWN = 0, 1, 3
AWAY: Final = re.compile(
    r"ConnectionError|Max retries|Name or service|getaddrinfo|Temporary failure|timed out|Timeout|ProxyError"
    r"|SSLError|SSLCertVerification|HTTPError|ServiceError|Connection(?: was)? (?:refused|reset|aborted)"
    r"|40[34] Client Error|50\d Server Error|Could not connect",
    re.IGNORECASE,
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__)
    parser.add_argument("--service", choices=("osv", "pypi"), default="osv", help="whose database is asked")
    parser.add_argument("--folder", type=Path, default=Path(".venv") / "audit", help="where pip-audit is put")
    parser.add_argument("--scanner", help="a pip-audit that is here already")
    options = parser.parse_args(arguments)
    try:
        scanner = options.scanner or str(installed(SCANNER, options.folder))
        done = subprocess.run(
            [scanner, "--requirement", str(PINNED), "--no-deps", "--disable-pip", "--vulnerability-service",
             options.service, "--progress-spinner", "off", "--format", "json"],
            capture_output=True, text=True, timeout=SCAN_SECONDS,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        return cannot(f"pip-audit cannot be had: {last_line(getattr(error, 'stderr', '') or str(error))}")
    return judged(done.returncode, done.stdout, done.stderr, options.service)


def judged(code: int, out: str, err: str, service: str) -> int:
    """What pip-audit found, told from what it could not look up."""
    try:
        packages = json.loads(out)["dependencies"] if code in (0, 1) else []
    except (ValueError, KeyError, TypeError):
        packages = []
    if not packages:
        problem = f"the database of {service} cannot be reached" if AWAY.search(err) else "pip-audit failed"
        return cannot(f"{problem}: {last_line(err)}")
    for package in packages:
        for weak in package.get("vulns", ()):
            fixed = ", ".join(weak.get("fix_versions", ())) or "no version"
            print(f"{package['name']} {package['version']}: {weak['id']}, fixed in {fixed}")
    if any(package.get("vulns") for package in packages):
        print(f"raise the versions above in {PINNED.name} and pyproject.toml, and run make test")
        return FOUND
    if skipped := [package["name"] for package in packages if "skip_reason" in package]:
        few = ", ".join(skipped[:3]) + (" ..." if len(skipped) > 3 else "")
        return cannot(f"{service} does not know {len(skipped)} of {len(packages)} packages ({few})")
    there = len(pinned(PINNED.read_text()))
    print(
        f"no known weakness in {len(packages)} of the {there} packages that {PINNED.name} pins, says {service}"
    )
    return CLEAN


def cannot(why: str) -> int:
    print(f"not scanned: {why}; run it again where there is a network", file=sys.stderr)
    return UNKNOWN


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:120] if lines else "it said nothing"


if __name__ == "__main__":
    sys.exit(main())
