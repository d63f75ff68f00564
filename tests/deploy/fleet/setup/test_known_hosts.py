"""Host keys are trusted after a person has compared them; ssh-keygen is real, only the network is simulated."""

import subprocess

import pytest

from protofleet.cli.main import main

FLEET = """
root = "root"
known_hosts = "known_hosts"
[hosts.a]
address = "10.9.9.1"
[hosts.b]
address = "fd00::1"
port = 2222
[hosts.gone]
address = "10.9.9.3"
"""
KEYSCAN = """#!/bin/sh
for last; do :; done
case "$last" in
    10.9.9.1) echo "# 10.9.9.1:22 SSH-2.0" >&2; echo "10.9.9.1 $(cut -d' ' -f1,2 {folder}/a.pub)" ;;
    fd00::1) echo "[fd00::1]:2222 $(cut -d' ' -f1,2 {folder}/b.pub)" ;;
esac
"""


@pytest.fixture
def desk(tmp_path, monkeypatch):
    (tmp_path / "fleet.toml").write_text(FLEET)
    for name in "abc":
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name]
        if subprocess.run(command, check=False).returncode:
            pytest.skip("there is no ssh-keygen")
    scan = tmp_path / "bin" / "ssh-keyscan"
    scan.parent.mkdir()
    scan.write_text(KEYSCAN.replace("{folder}", str(tmp_path)))
    scan.chmod(0o755)
    monkeypatch.setenv("PATH", str(scan.parent), prepend=":")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fingerprint(desk, name):
    words = ["ssh-keygen", "-l", "-f", desk / f"{name}.pub"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[1]


def test_known_hosts_shows_the_keys_and_stores_the_confirmed_keys(desk, capsys):
    assert main(["deploy", "known-hosts", "--yes"]) == 1, "one host does not answer"
    said = capsys.readouterr().out
    assert fingerprint(desk, "a") in said and fingerprint(desk, "b") in said
    assert "10.9.9.3 has sent no host key" in said and "the host is switched on" in said
    assert len((desk / "known_hosts").read_text().splitlines()) == 2
    assert main(["deploy", "known-hosts", "a", "b"]) == 0, "the command asks for no second confirmation"
    assert "[fd00::1]:2222 is known" in capsys.readouterr().out
    assert len((desk / "known_hosts").read_text().splitlines()) == 2


def test_known_hosts_shows_fingerprints_and_stores_nothing_without_terminal_or_yes(desk, capsys):
    assert main(["deploy", "known-hosts"]) == 1
    said = capsys.readouterr()
    assert fingerprint(desk, "a") in said.out and fingerprint(desk, "b") in said.out
    assert "10.9.9.3 has sent no host key" in said.out, "the output gives the reason for a host without a key"
    (last,) = said.err.splitlines()
    assert (
        "no terminal to confirm 2 fingerprints" in last and "with --yes (make: ARGS=--yes) for a, b" in last
    )
    assert not (desk / "known_hosts").exists()
    main(["deploy", "known-hosts", "--yes"])
    assert len((desk / "known_hosts").read_text().splitlines()) == 2


def test_a_changed_host_key_needs_a_confirmation_and_then_replaces_the_old_key(desk, capsys):
    main(["deploy", "known-hosts", "a", "--yes"])
    (desk / "a.pub").write_text((desk / "c.pub").read_text())
    capsys.readouterr()
    assert main(["deploy", "known-hosts", "a"]) == 1, "there is no terminal to confirm it"
    assert "there is no terminal" in capsys.readouterr().err
    assert main(["deploy", "known-hosts", "a", "--yes"]) == 0
    said = capsys.readouterr().out
    assert f"{fingerprint(desk, 'c')} (the known key is another key" in said
    (line,) = (desk / "known_hosts").read_text().splitlines()
    assert line.split()[-1] == (desk / "c.pub").read_text().split()[1]


def test_the_error_for_a_fleet_file_without_known_hosts_names_the_setting(desk, capsys):
    (desk / "fleet.toml").write_text(FLEET.replace('known_hosts = "known_hosts"\n', ""))
    assert main(["deploy", "known-hosts"]) == 2
    assert 'add known_hosts = "known_hosts"' in capsys.readouterr().err


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\r", "\x1c", "\u2028", "\xff"])
def test_a_host_cannot_add_a_key_by_its_banner(desk, capsys, end):
    key = (desk / "c.pub").read_text().split()[1]
    lines = f"# 10.9.9.1:22 SSH-2.0-x{end}10.9.9.1 ssh-ed25519 {key}{end}\n10.9.9.7 ssh-ed25519 {key}\n"
    (desk / "banner").write_bytes(lines.encode("utf-8" if end == "\u2028" else "latin-1"))
    scan = desk / "bin" / "ssh-keyscan"
    scan.write_text(scan.read_text().replace('10.9.9.1) echo "#', f'10.9.9.1) cat {desk}/banner; echo "#'))
    main(["deploy", "known-hosts", "a", "--yes"])
    assert fingerprint(desk, "a") in capsys.readouterr().out
    assert key not in (desk / "known_hosts").read_text()
