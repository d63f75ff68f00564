"""Text that a device returns is only data."""

import shutil
import subprocess

import pytest

from protofleet.deploy.fleet.settings import Fleet, Host
from protofleet.deploy.fleet.ssh import CommandResult, Ssh, configuration
from protofleet.protocol.settings.reader import SettingsError


def test_control_characters_in_the_output_of_a_device_are_escaped(tmp_path, monkeypatch):
    program = tmp_path / "ssh"
    program.write_text(
        "#!/bin/sh\nprintf 'a\\033[2Jb\\r\\nc\\td\\302\\233e\\n'\nprintf '\\033]0;mine\\007word\\n' >&2\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    host = Host("board.example")
    said = Ssh("board-1", host, Fleet("root", {"board-1": host}), tmp_path).run("")
    assert said.out == "a\x1b[2Jb\r\nc\td\x9be\n", "the parser gets every byte of the data"
    assert said.last_line == "\\x1b]0;mine\\x07word"


def fleet_of(host, **more):
    return Fleet("root", {"board-1": host}, **more)


@pytest.mark.parametrize("path", ['known\nMatch exec "touch mine"\n', 'a"b', "a\\b", "a\rb", "a\tb"])
@pytest.mark.parametrize("key", ["known_hosts", "key"])
def test_a_path_with_quotes_or_line_breaks_is_refused_in_the_ssh_configuration(tmp_path, key, path):
    host = Host("board.example")
    with pytest.raises(SettingsError, match=f"{key} is .*must not have quotes, backslashes or line breaks"):
        if key == "key":
            object.__setattr__(host, "key", path)  # the path is checked after it is joined to its folder
            configuration(host, fleet_of(host), tmp_path)
        else:
            configuration(host, fleet_of(host, known_hosts=path), tmp_path)
    assert not (tmp_path / "mine").exists()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh on this machine")
def test_ssh_accepts_paths_with_spaces_in_its_configuration(tmp_path):
    host, folder = Host("fe80::1"), tmp_path / "my files"
    folder.mkdir()
    conf = folder / "conf"
    conf.write_text(configuration(host, fleet_of(host, known_hosts=str(folder / "known hosts")), folder))
    said = subprocess.run(
        ["ssh", "-G", "-F", str(conf), "fe80::1"], capture_output=True, text=True, timeout=20
    )
    assert f"userknownhostsfile {folder / 'known hosts'}" in said.stdout, said.stderr
    assert f"controlpath {folder}/" in said.stdout


def test_rsync_gets_an_ipv6_address_in_brackets(tmp_path):
    called = []

    def recorded(command, stdin, seconds):
        called.append(command)
        return CommandResult(0, "", "")

    for address, target in (
        ("fe80::1", "[fe80::1]:/srv/"),
        ("10.0.0.1", "10.0.0.1:/srv/"),
        ("board", "board:/srv/"),
    ):
        host = Host(address)
        Ssh("board-1", host, fleet_of(host), tmp_path, recorded).send(tmp_path, "/srv")
        assert called[-1][-1] == target
