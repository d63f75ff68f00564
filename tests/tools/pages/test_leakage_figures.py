import json

import pytest

from protofleet.cli.main import main
from protofleet.lab.report.measured_leakage import PATH, read_measured_leakage
from protofleet.methods.contract import catalog
from tools.pages import leakage_figures as tool


def test_the_page_has_the_stored_figures():
    text = tool.PAGE.read_text()
    assert tool.generate(text) == text, "run python -m tools.pages"


def test_each_stored_method_exists_and_has_a_figure_or_a_reason():
    measured = read_measured_leakage()
    assert measured.keys() <= set(catalog.names())
    for name, one in measured.items():
        assert one.method == name and one.attacker == "A3"
        assert all(row.value is not None or row.unmeasured for row in (*one.worst, *one.missing))
        assert one.worst or one.missing or not catalog.load(name).arrays


def test_a_membership_figure_is_sound_if_its_control_includes_chance():
    rows = [row for one in read_measured_leakage().values() for row in one.worst if row.measure == "AUC"]
    assert len(rows) > 10
    for row in rows:
        assert None not in (row.low, row.high, row.control_low, row.control_high)
        assert row.sound == (row.control_low <= 0.5 <= row.control_high)


def test_new_figures_replace_only_the_figures_of_their_method(tmp_path):
    path = tmp_path / "figures.json"
    tool.write_method("b", {"x": 1}, path)
    tool.write_method("a", {"x": 2}, path)
    tool.write_method("b", {"x": 3}, path)
    assert json.loads(path.read_text()) == {"a": {"x": 2}, "b": {"x": 3}}


@pytest.mark.parametrize("method", ["fedavg", "fedpall"])
def test_the_description_of_a_method_shows_its_measured_attacks(method, capsys):
    assert main(["methods", method]) == 0
    said = capsys.readouterr().out
    assert "An answer gives away" in said
    for row in read_measured_leakage(PATH)[method].worst:
        assert row.attack in said
