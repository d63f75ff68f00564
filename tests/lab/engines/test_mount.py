"""The mount of a folder is the last one that covers the folder."""

from pathlib import Path

from protofleet.lab.engines.mount import mount_of

MOUNTS = (
    "root / ext4 rw 0 0\nold /home nfs rw 0 0\nserver:/home /home nfs4 rw,vers=4.2 0 0\n"
    "x /home/my\\040runs lustre rw,localflock 0 0\n"
)


def test_the_last_mount_that_covers_the_folder_is_named_with_its_options(tmp_path):
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    assert mount_of(Path("/home/runs"), table) == "/home, nfs4 of server:/home (rw,vers=4.2)"
    assert mount_of(Path("/home/my runs/a"), table) == "/home/my runs, lustre of x (rw,localflock)"
    assert mount_of(Path("/homes"), table) == "/, ext4 of root (rw)"


def test_only_the_folder_is_named_if_there_is_no_mount_table(tmp_path):
    assert mount_of(Path("/home"), tmp_path / "none") == "/home"
