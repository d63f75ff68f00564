"""Kept answers whose files are damaged."""

import pytest

from protofleet.lab.leakage.kept_answers import read_kept
from protofleet.methods.contract.plan import Network, Plan
from protofleet.runtime.command.errors import RunError

PLAN = Plan("fedproto", 3, 2, network=Network("mlp"), keep=(1,))
DAMAGED = [
    "[]",
    '{"examples": 3}',
    '{"examples": {"a": 3}, "counts": 4}',
    '{"examples": {"a": 3}}',
    "{",
    "{}",
]


@pytest.mark.parametrize("about", DAMAGED)
def test_a_damaged_description_is_refused_in_one_line_with_a_fix(tmp_path, about):
    (tmp_path / "1.train").mkdir()
    (tmp_path / "plan.json").write_bytes(PLAN.encode())
    (tmp_path / "1.train" / "answers.json").write_text(about)
    with pytest.raises(
        RunError, match="cannot be read .*restore the folder from a backup, or repeat"
    ) as error:
        read_kept(tmp_path)
    assert "\n" not in str(error.value)
