"""A settings file that is given to the wrong command is recognized by its keys."""

import pytest

from protofleet.lab.local.misplaced import kind_of

QUEUE = {"federation": "lab", "folder": "runs", "enrolled": "keys"}


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        ({**QUEUE, "devices": "records", "slots": 9}, "coordinator"),
        ({**QUEUE, "slotz": 2}, ""),
        ({**QUEUE, "name": "board-1"}, "device"),
        ({**QUEUE, "name": "red", "method": {"name": "fedavg"}}, "coordinator"),
        ({"name": "red", "data": {}, "method": {"name": "fedavg"}}, "run"),
    ],
)
def test_the_kind_of_a_settings_file_is_recognized_by_its_keys(table, kind):
    assert kind_of(table) == kind
