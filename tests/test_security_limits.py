"""Tests that docs/security-limits.md describes what the code does."""

import pkgutil
import re
from pathlib import Path

import pytest

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.methods.nets import weights_file
from protofleet.protocol.transport import packets
from protofleet.protocol.wire.reasons import Reason
from tools.pages import security_limits

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "security-limits.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")] for line in TEXT.splitlines() if line[:2] == "| "
]
NAMED = [
    (row[1], path)
    for row in ROWS
    for path in re.findall(
        r"`protofleet\.((?:protocol|runtime|coordinator|methods|edge_client)\.[\w.]+)`", row[2]
    )
]


@pytest.mark.parametrize(("value", "path"), NAMED, ids=[path for _, path in NAMED])
def test_each_limit_on_the_page_exists_in_the_code_with_the_same_number(value, path):
    found = pkgutil.resolve_name(f"protofleet.{path}")
    if isinstance(found, (int, float)) and (number := re.match(r"[\d,]+(e\d+)?", value)):
        assert float(number[0].replace(",", "")) == found


def test_the_tables_of_limits_equal_the_generated_tables():
    assert security_limits.generate(TEXT) == TEXT, "run python -m tools.pages.security_limits"


@pytest.mark.parametrize("module", [weights_file, packets])
def test_each_limit_of_a_weights_file_and_of_a_packet_is_on_the_page(module):
    names = [name for name in vars(module) if re.match("LARGEST|MOST|DEEPEST", name)]
    listed = {path for _, path in NAMED}
    missing = [
        name for name in names if f"{module.__name__.removeprefix('protofleet.')}.{name}" not in listed
    ]
    assert names and not missing


def test_each_test_that_a_row_names_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)`: `(test_\w+)`", TEXT)
    missing = [name for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
    assert named and not missing


def test_each_reason_that_the_page_names_exists():
    named = {word for row in ROWS for word in re.findall(r"`([a-z]+(?:_[a-z]+)*)`", row[-1])}
    assert named <= {reason.value for reason in Reason} | {"other"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"examples": 0}, "examples is 0, it must be at least 1"),
        ({"examples": 2**41}, "at most 1_099_511_627_776"),
        ({"answer_bytes": 2**31}, "at most"),
        ({"answer_bytes": 100, "spool_bytes": 99}, "spool_bytes = 99"),
        ({"spool_bytes": -1}, "at least 1"),
        ({"domains": {"a\nb": ()}}, "domains contains 'a.*nb', but the name of a domain must have 1 to 64"),
    ],
)
def test_an_invalid_limit_is_refused_with_its_value_and_the_valid_range(change, words):
    with pytest.raises(ValueError, match=words):
        CoordinatorLimits(**change)
