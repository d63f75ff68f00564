"""make audit: known vulnerabilities of the pinned packages, as pip-audit finds them in a public database.

pip-audit is installed in its own virtual environment, so it is no dependency of the project that it scans. A
package that was not looked up can be vulnerable. Therefore the command ends with exit code 3 and one line of
output if the scanner or the database cannot be reached, or if the database does not know a package.
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

from protofleet.runtime.locks.lockfile import pinned_versions
from tools.locks.tool_venv import install_tool

SCANNER: Final = "pip-audit==2.10.1"
CONSTRAINTS: Final = Path(__file__).parents[2] / "runtime" / "constraints.txt"
SCAN_SECONDS: Final = 600.0
CLEAN, VULNERABLE, NOT_SCANNED = 0, 1, 3
NETWORK_ERRORS: Final = re.compile(
    r"ConnectionError|Max retries|Name or service|getaddrinfo|Temporary failure|timed out|Timeout|ProxyError"
    r"|SSLError|SSLCertVerification|HTTPError|ServiceError|Connection(?: was)? (?:refused|reset|aborted)"
    r"|40[34] Client Error|50\d Server Error|Could not connect",
    re.IGNORECASE,
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__, allow_abbrev=False)
    parser.add_argument("--service", choices=("osv", "pypi"), default="osv", help="the database to search")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(".venv") / "audit",
        help="the folder in which pip-audit is installed",
    )
    parser.add_argument(
        "--scanner", help="use the installed pip-audit at this path instead of installing one"
    )
    options = parser.parse_args(arguments)
    try:
        scanner = options.scanner or str(install_tool(SCANNER, options.folder))
        done = subprocess.run(
            [scanner, "--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip", "--vulnerability-service",
             options.service, "--progress-spinner", "off", "--format", "json"],
            capture_output=True, text=True, timeout=SCAN_SECONDS,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        return not_scanned(
            f"pip-audit cannot be installed or started: {last_line(getattr(error, 'stderr', '') or str(error))}"
        )
    return report_findings(done.returncode, done.stdout, done.stderr, options.service)


def report_findings(code: int, out: str, err: str, service: str) -> int:
    """Print the findings of pip-audit. If pip-audit could not look up a package, the result is not clean."""
    try:
        packages = json.loads(out)["dependencies"] if code in (0, 1) else []
    except (ValueError, KeyError, TypeError):
        packages = []
    if not packages:
        problem = (
            f"the database of {service} cannot be reached"
            if NETWORK_ERRORS.search(err)
            else "pip-audit failed"
        )
        return not_scanned(f"{problem}: {last_line(err)}")
    for package in packages:
        for vulnerability in package.get("vulns", ()):
            fixed = ", ".join(vulnerability.get("fix_versions", ())) or "no version"
            print(f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}")
    if any(package.get("vulns") for package in packages):
        print(f"raise the versions above in {CONSTRAINTS.name} and pyproject.toml, and run make test")
        return VULNERABLE
    if skipped := [package["name"] for package in packages if "skip_reason" in package]:
        few = ", ".join(skipped[:3]) + (" ..." if len(skipped) > 3 else "")
        return not_scanned(f"{service} does not know {len(skipped)} of {len(packages)} packages ({few})")
    pinned = f"{len(pinned_versions(CONSTRAINTS.read_text()))} packages that {CONSTRAINTS.name} pins"
    print(f"no known vulnerability in {len(packages)} of the {pinned}, according to {service}")
    return CLEAN


def not_scanned(why: str) -> int:
    print(f"not scanned: {why}; run the command again on a machine with a network", file=sys.stderr)
    return NOT_SCANNED


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:120] if lines else "no output"


if __name__ == "__main__":
    sys.exit(main())
