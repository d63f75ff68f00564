"""The tables of docs/robust.md have the measured lines, and a cell without a measurement stays empty."""

import pytest

from tools.pages import robust_figures
from tools.pages.robust_figures import PAGE, costs, costs_table, main, minority_table, read, words


def line(method="fedavg", rule="mean", attack="nobody", domains="six", seed=1, accuracy=50.0, **devices):
    return (method, rule, attack, domains), seed, {"accuracy": accuracy, "devices": devices}


def found_of(*lines):
    found = {}
    for key, seed, one in lines:
        found.setdefault(key, {})[seed] = one
    return found


def test_the_page_has_the_tables_of_the_measured_lines(tmp_path, monkeypatch):
    copy = tmp_path / "robust.md"
    copy.write_text(PAGE.read_text())
    monkeypatch.setattr(robust_figures, "PAGE", copy)
    main()
    assert copy.read_text() == PAGE.read_text()
    assert read(), "the lines are in the repository"


def test_a_cost_is_the_mean_of_the_differences_of_equal_seeds():
    found = found_of(
        line(seed=1, accuracy=50.0), line(seed=2, accuracy=60.0), line(seed=3, accuracy=99.0),
        line(rule="trimmed", attack="ALIE", seed=1, accuracy=40.0),
        line(rule="trimmed", attack="ALIE", seed=2, accuracy=46.0),
    )  # fmt: skip
    assert costs(found, "fedavg", "trimmed", "ALIE") == "12.0 ± 2.8 (2)"
    assert costs(found, "fedavg", "cap", "ALIE") == ""
    assert costs(found, "fedavg", "mean", "nobody") == "0.0 ± 0.0 (3)"


@pytest.mark.parametrize("numbers, text", [
    ([], ""), ([1.0], "1.0 (1)"), ([1.0, 2.0, 3.0, 4.0, 5.0], "3.0 ± 1.6"),
])  # fmt: skip
def test_a_mean_of_fewer_than_five_seeds_shows_the_number_of_seeds(numbers, text):
    assert words(numbers) == text


def test_rules_that_are_not_measured_have_no_row():
    text = costs_table(found_of(line(), line(rule="cap", accuracy=48.0)), "fedavg")
    assert "| `cap` | 2.0 (1) |" in text and "`trimmed`" not in text and "drift" not in text


def test_domains_of_the_minority_have_their_own_columns():
    devices = {"mnist-0": 90.0, "mnist-1": 92.0, "synth-0": 50.0, "street-0": 40.0}
    text = minority_table(found_of(line(domains="minority", **devices)))
    assert "| weights (FedAvg) | `mean` | 91.0 (1) | 50.0 (1) | 40.0 (1) |" in text
