"""Tests of `protofleet methods NAME`, which explains a method."""

from dataclasses import fields

import pytest

from protofleet.cli.explain import explanation
from protofleet.methods.contract.catalog import load, names
from protofleet.protocol.settings.reader import SettingsError


@pytest.mark.parametrize("name", names())
def test_an_explanation_contains_the_paper_and_all_settings_of_the_method(name):
    text = explanation(name)
    for f in fields(load(name).Hyper):
        assert f"  {f.name:22} = " in text
    assert load(name).reports in text


def test_an_explanation_lists_the_choices_of_a_setting():
    line = next(line for line in explanation("fedlsa").splitlines() if "anchors_first_round  " in line)
    assert line.split("= ")[1] == '"pretrain"     "pretrain", "skip"'
    assert "clip                   = (left out)     number or left out (local training)" in explanation(
        "fedavg"
    )


def test_an_unknown_method_is_refused_with_the_known_methods():
    with pytest.raises(SettingsError, match="no method 'foo'; there are adcol, apfl, ditto, "):
        explanation("foo")
