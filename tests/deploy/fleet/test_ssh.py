"""What comes back from a device is data, and no more than that."""

from protofleet.deploy.fleet.settings import Fleet, Host
from protofleet.deploy.fleet.ssh import Ssh


def test_a_devices_words_do_not_steer_the_operators_terminal(tmp_path, monkeypatch):
    program = tmp_path / "ssh"
    program.write_text(
        "#!/bin/sh\nprintf 'a\\033[2Jb\\r\\nc\\td\\302\\233e\\n'\nprintf '\\033]0;mine\\007word\\n' >&2\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    host = Host("board.example")
    said = Ssh("board-1", host, Fleet("root", {"board-1": host}), tmp_path).run("")
    assert said.out == "a[2Jb\nc\tde\n" and said.last_line == "]0;mineword"
