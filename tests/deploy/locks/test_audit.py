"""The dependency scan: what it finds, and what it says where nothing can be looked up."""

import json
import stat
import zipfile

import pytest

from protofleet.deploy.locks import audit

CLEAN = json.dumps({"dependencies": [{"name": "torch", "version": "2.13.0", "vulns": []}]})
WEAK = {"id": "CVE-2025-1", "fix_versions": ["2.14"], "description": ""}
FOUND = json.dumps({"dependencies": [{"name": "torch", "version": "2.13.0", "vulns": [WEAK]}]})
SKIPPED = json.dumps({"dependencies": [{"name": "torch", "skip_reason": "Dependency not found on PyPI"}]})
OFFLINE = "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.osv.dev'): Max retries exceeded"


@pytest.fixture
def scanner(tmp_path):
    """A program that says what a test tells it to say, in the place of pip-audit."""

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


def test_nothing_known_is_said_and_what_was_asked_is_what_is_pinned(scanner, tmp_path, capsys):
    assert audit.main(["--scanner", scanner(0, CLEAN)]) == 0
    assert "no known weakness in the 1 packages" in capsys.readouterr().out
    assert str(audit.PINNED) in (tmp_path / "asked").read_text()


def test_a_weakness_is_shown_with_the_way_out(scanner, capsys):
    assert audit.main(["--scanner", scanner(1, FOUND, "Found 1\n")]) == 1
    assert "CVE-2025-1, fixed in 2.14" in (said := capsys.readouterr().out) and "raise the versions" in said


def test_a_database_that_does_not_know_a_package_has_not_called_it_clean(scanner, capsys):
    assert audit.main(["--scanner", scanner(0, SKIPPED)]) == audit.UNKNOWN
    assert "osv does not know 1 of 1 packages (torch)" in capsys.readouterr().err


@pytest.mark.parametrize("complained", [OFFLINE, "Traceback ...\nServiceError: 503 Server Error", "it broke"])
def test_what_could_not_be_looked_up_is_one_line_and_not_called_clean(scanner, capsys, complained):
    assert audit.main(["--scanner", scanner(1, "", complained)]) == audit.UNKNOWN
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and said.err.startswith("not scanned: ")


def test_a_scanner_that_is_not_there_is_one_line_too(tmp_path, capsys):
    assert audit.main(["--scanner", str(tmp_path / "gone")]) == audit.UNKNOWN
    assert capsys.readouterr().err.startswith("not scanned: pip-audit cannot be had")


def record(name, **affected):
    package = {"package": {"name": name, "ecosystem": "PyPI"}, **affected}
    return {"id": f"PYSEC-{name}", "summary": "bad", "affected": [package]}


def events(*pairs):
    return {"ranges": [{"type": "ECOSYSTEM", "events": [{what: at} for what, at in pairs]}]}


@pytest.fixture
def database(tmp_path, monkeypatch):
    """An archive of these records, beside packages that are pinned."""
    (tmp_path / "constraints.txt").write_text("# pinned\nPy_Yaml==5.3  # here\ntorch==2.13.0\n")
    monkeypatch.setattr(audit, "PINNED", tmp_path / "constraints.txt")

    def make(*records):
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            for i, each in enumerate(records):
                archive.writestr(f"{i}.json", json.dumps(each))
        return str(tmp_path / "all.zip")

    return make


@pytest.mark.parametrize(
    ("affected", "weak"),
    [
        ({"versions": ["5.2", "5.3"]}, True),
        ({"versions": ["5.2"]}, False),
        (events(("introduced", "0"), ("fixed", "5.4")), True),
        (events(("introduced", "0"), ("fixed", "5.3")), False),
        (events(("introduced", "5.3.1"), ("fixed", "6")), False),
        (events(("introduced", "0"), ("last_affected", "5.3")), True),
        (events(("introduced", "0"), ("fixed", "4"), ("introduced", "5.1"), ("fixed", "5.10")), True),
    ],
)
def test_a_file_of_records_is_asked_where_there_is_no_network(database, capsys, affected, weak):
    others = [record("requests", versions=["5.3"]), record("torch", **events(("introduced", "3")))]
    path = database(*others, record("pyyaml", versions=["5.3"]), record("py-yaml", **affected))
    assert audit.main(["--database", path]) == (audit.FOUND if weak else audit.CLEAN)
    said = capsys.readouterr().out
    assert ("py-yaml 5.3: PYSEC-py-yaml" in said) == weak and "torch" not in said
    assert ("no known weakness in the 2 packages" in said and "(4 records)" in said) == (not weak)


def test_a_withdrawn_record_says_nothing(database):
    path = database({**record("torch", versions=["2.13.0"]), "withdrawn": "2026-01-01T00:00:00Z"})
    assert audit.main(["--database", path]) == audit.CLEAN


@pytest.mark.parametrize("content", [None, b"no archive", b""])
def test_a_file_that_is_no_archive_of_records_is_one_line(tmp_path, capsys, content):
    path = tmp_path / "all.zip"
    if content is not None:
        path.write_bytes(content)
    if content == b"":
        zipfile.ZipFile(path, "w").close()
    assert audit.main(["--database", str(path)]) == audit.UNKNOWN
    assert capsys.readouterr().err.count("\n") == 1
