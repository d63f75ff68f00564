"""A person can ask for an explanation of each method."""

from dataclasses import fields

import pytest

from protofleet.cli.explain import explanation
from protofleet.methods.contract.catalog import load, names
from protofleet.protocol.settings.reader import SettingsError


@pytest.mark.parametrize("name", names())
def test_a_method_shows_its_paper_and_all_its_settings(name):
    text = explanation(name)
    for f in fields(load(name).Hyper):
        assert f"  {f.name:22} = " in text
    assert load(name).reports in text


def test_choices_are_listed():
    line = next(line for line in explanation("fedlsa").splitlines() if "anchors_first_round  " in line)
    assert line.split("= ")[1] == '"pretrain"     "pretrain", "skip"'
    assert "clip                   = (left out)     number or left out (local training)" in explanation(
        "fedavg"
    )


def test_an_unknown_method_is_answered_with_the_known_ones():
    with pytest.raises(SettingsError, match="no method 'foo'; there are adcol, apfl, ditto, "):
        explanation("foo")
