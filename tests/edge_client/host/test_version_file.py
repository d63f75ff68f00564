"""A file stores the version of a signed text that a device has used."""

import pytest

from protofleet.edge_client.host.version_file import VersionFile


def test_the_next_process_reads_the_stored_version(tmp_path):
    path = tmp_path / "settings.version"
    assert VersionFile(path).highest() == 0
    VersionFile(path).store(12)
    assert VersionFile(path).highest() == 12 and path.read_text() == "12\n"


@pytest.mark.parametrize("text", ["", "\n", "-1", "1.5", "twelve"])
def test_a_file_that_contains_no_version_counts_as_version_0(tmp_path, text):
    path = tmp_path / "settings.version"
    path.write_text(text)
    assert VersionFile(path).highest() == 0
