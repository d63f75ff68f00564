"""Tests of `make near`: which tests it runs for which changed files."""

import pytest

from tests.near import NearTests, without_mirror
from tests.rooms import ROOT

NEAR = NearTests()


def test_near_runs_the_mirrored_folder_and_the_tests_that_import_a_changed_file():
    found = NEAR.of(["lab/report/latex.py"])
    assert "tests/lab/report/test_compare.py" in found
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/lab/report").glob("test_*.py")} <= {
        *found
    }
    assert "tests/test_architecture.py" in found
    assert not [name for name in found if name.startswith("tests/coordinator")]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("protofleet/cli/main.py", "tests/cli/test_interrupt.py"),
        ("tests/lab/report/test_compare.py", "tests/lab/report/test_compare.py"),
        ("tests/support/installed.py", "tests/test_packaging.py"),
        ("tools/locks/audit.py", "tests/tools/locks/test_audit.py"),
        ("docs/cli.md", "tests/test_docs.py"),
        ("deploy/fleet/device/facts.sh", "tests/deploy/fleet"),
        ("pyproject.toml", "tests/test_packaging.py"),
        ("LICENSE", "tests/test_architecture.py"),
    ],
)
def test_near_runs_the_tests_that_read_a_changed_file(changed, expected):
    assert expected in NEAR.of([changed])


def test_near_does_not_name_a_test_file_of_a_folder_that_it_runs():
    found = NEAR.of(["deploy/fleet/device/facts.sh", "tests/deploy/fleet/test_plan.py"])
    assert "tests/deploy/fleet" in found
    assert not [name for name in found if name.startswith("tests/deploy/fleet/")]


def test_near_does_not_name_a_deleted_test():
    assert NEAR.of(["tests/lab/test_that_was_deleted.py"]) == ["tests/test_architecture.py"]


def test_every_room_of_more_than_300_lines_has_a_mirrored_test_folder():
    assert without_mirror() == []
