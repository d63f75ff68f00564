"""The dependency scan reports vulnerabilities, and reports also that it could not look up a package."""

import json
import stat

import pytest

from protofleet.runtime.locks.lockfile import pinned_versions
from tools.locks import audit

CLEAN = json.dumps({"dependencies": [{"name": "torch", "version": "2.13.0", "vulns": []}]})
WEAK = {"id": "CVE-2025-1", "fix_versions": ["2.14"], "description": ""}
FOUND = json.dumps({"dependencies": [{"name": "torch", "version": "2.13.0", "vulns": [WEAK]}]})
SKIPPED = json.dumps({"dependencies": [{"name": "torch", "skip_reason": "Dependency not found on PyPI"}]})
OFFLINE = "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.osv.dev'): Max retries exceeded"


@pytest.fixture
def scanner(tmp_path):
    """Return a function that writes a program in the place of pip-audit, with the output that the test gives."""

    def make(code, said="", complained=""):
        path = tmp_path / "pip-audit"
        (tmp_path / "said").write_text(said)
        (tmp_path / "complained").write_text(complained)
        told = (
            f'echo "$@" > {tmp_path}/asked; cat {tmp_path}/said; cat {tmp_path}/complained >&2; exit {code}'
        )
        path.write_text(f"#!/bin/sh\n{told}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def test_a_clean_scan_of_the_pinned_packages_is_reported(scanner, tmp_path, capsys):
    assert audit.main(["--scanner", scanner(0, CLEAN)]) == 0
    there = len(pinned_versions(audit.CONSTRAINTS.read_text()))
    assert f"no known vulnerability in 1 of the {there} packages" in capsys.readouterr().out
    assert str(audit.CONSTRAINTS) in (tmp_path / "asked").read_text()


def test_a_vulnerability_is_shown_with_the_fix(scanner, capsys):
    assert audit.main(["--scanner", scanner(1, FOUND, "Found 1\n")]) == 1
    assert "CVE-2025-1, fixed in 2.14" in (said := capsys.readouterr().out) and "raise the versions" in said


def test_a_package_that_the_database_does_not_know_is_reported_as_not_scanned(scanner, capsys):
    assert audit.main(["--scanner", scanner(0, SKIPPED)]) == audit.NOT_SCANNED
    assert "osv does not know 1 of 1 packages (torch)" in capsys.readouterr().err


@pytest.mark.parametrize("complained", [OFFLINE, "Traceback ...\nServiceError: 503 Server Error", "it broke"])
def test_a_failed_lookup_is_reported_in_one_line_as_not_scanned(scanner, capsys, complained):
    assert audit.main(["--scanner", scanner(1, "", complained)]) == audit.NOT_SCANNED
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and said.err.startswith("not scanned: ")


def test_a_missing_scanner_is_reported_in_one_line_as_not_scanned(tmp_path, capsys):
    assert audit.main(["--scanner", str(tmp_path / "gone")]) == audit.NOT_SCANNED
    assert capsys.readouterr().err.startswith("not scanned: pip-audit cannot be installed")
