"""make audit: known weaknesses of the packages that are pinned, as pip-audit finds them in a public database.

pip-audit lives in a virtual environment of its own, so that the scanner is no dependency of what it scans. Where
the scanner or the database cannot be reached, one line says so, with exit code 3: not found is not the same as none.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SCANNER: Final = "pip-audit==2.10.1"
PINNED: Final = Path(__file__).parent / "constraints.txt"
INSTALL_SECONDS: Final = 300.0
SCAN_SECONDS: Final = 600.0
CLEAN, FOUND, UNKNOWN = 0, 1, 3
AWAY: Final = re.compile(
    r"ConnectionError|Max retries|Name or service|getaddrinfo|Temporary failure|timed out|Timeout|ProxyError"
    r"|SSLError|SSLCertVerification|HTTPError|ServiceError|Connection(?: was)? (?:refused|reset|aborted)"
    r"|40[34] Client Error|50\d Server Error|Could not connect",
    re.IGNORECASE,
)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__)
    parser.add_argument("--service", choices=("osv", "pypi"), default="osv", help="whose database is asked")
    parser.add_argument("--folder", type=Path, default=Path(".venv") / "audit", help="where pip-audit is put")
    parser.add_argument("--scanner", help="a pip-audit that is here already")
    options = parser.parse_args(words)
    try:
        scanner = options.scanner or installed(options.folder)
        done = subprocess.run(
            [scanner, "--requirement", str(PINNED), "--no-deps", "--disable-pip", "--vulnerability-service",
             options.service, "--progress-spinner", "off"],
            capture_output=True, text=True, timeout=SCAN_SECONDS,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        return cannot(f"pip-audit cannot be had: {last_line(getattr(error, 'stderr', '') or str(error))}")
    return judged(done.returncode, done.stdout, done.stderr, options.service)


def installed(folder: Path) -> str:
    """pip-audit in its own environment; it is made once."""
    program = folder / "bin" / "pip-audit"
    if not program.exists():
        venv.create(folder, with_pip=True, clear=True)
        install = [
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "-q",
            "--disable-pip-version-check",
            "install",
            SCANNER,
        ]
        subprocess.run(install, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    return str(program)


def judged(code: int, said: str, complained: str, service: str) -> int:
    """What pip-audit found, told from what it could not look up."""
    if code == 0:
        print(f"no known weakness in the packages of {PINNED.name}, says {service}")
        return CLEAN
    if said.strip():
        print(said.rstrip())
        print(f"raise the versions above in {PINNED.name} and pyproject.toml, and run make test")
        return FOUND
    if AWAY.search(complained):
        return cannot(f"the database of {service} cannot be reached: {last_line(complained)}")
    return cannot(f"pip-audit failed: {last_line(complained)}")


def cannot(why: str) -> int:
    print(f"not scanned: {why}; run it again where there is a network", file=sys.stderr)
    return UNKNOWN


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:120] if lines else "it said nothing"


if __name__ == "__main__":
    sys.exit(main())
