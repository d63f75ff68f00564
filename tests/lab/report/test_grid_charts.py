"""Runs that differ in one or two numbers become figures of hyper-parameters."""

import re

import pytest

from protofleet.lab.report.comparison import read_groups
from protofleet.lab.report.comparison_page import comparison_page
from protofleet.lab.report.grid_charts import cell, grid_section, luminance, varied
from tests.lab.report.pictures import pictures_of
from tests.lab.report.test_compare import finished


def groups(tmp_path, settings, seeds=(1, 2)):
    """Write a run for each text of settings and each seed; later settings have better accuracy."""
    folders = [
        finished(
            tmp_path / f"{i}-{seed}", f"run-{i}-s{seed}", [0.1, 0.5 + 0.05 * i + 0.01 * seed],
            seed=seed, settings=lines,
        )
        for i, lines in enumerate(settings)
        for seed in seeds
    ]  # fmt: skip
    return read_groups(folders)


def test_one_varied_number_gives_a_curve_with_a_point_for_each_value_and_a_band(tmp_path):
    section = grid_section(groups(tmp_path, [f"size = {size}" for size in (8, 16, 32)]))
    assert "Accuracy over size" in section and section.count("<circle") == 2 * 3 and "<polygon" in section
    assert "logarithmic" not in section


def test_a_wide_axis_is_logarithmic(tmp_path):
    section = grid_section(
        groups(tmp_path, [f"[network]\nwidth = {w}" for w in (0.01, 0.1, 1.0)], seeds=(1,))
    )
    assert "network.width; the axis is logarithmic" in section and "<polygon" not in section


def shown(picture):
    return [float(node.text) for node in picture.iter() if re.fullmatch(r"\d\d\.\d", node.text or "")]


def test_two_varied_numbers_give_a_heat_map_with_a_cell_for_each_pair(tmp_path):
    pairs = [f"a = {a}\nb = {b}" for a in (1, 2) for b in (0.5, 0.7, 0.9)]
    section = grid_section(groups(tmp_path, pairs))
    for width in ("wide", "narrow"):
        (picture,) = pictures_of(section, width)
        cells = [51.5, 56.5, 61.5, 66.5, 71.5, 76.5]
        assert shown(picture)[::2] == shown(picture)[1::2] == pytest.approx(cells)  # a title and letters
        fills = [luminance(*bytes.fromhex(r.get("fill")[1:])) for r in picture.findall("{*}rect")]
        assert fills == sorted(fills, reverse=True) and fills[0] > 0.8
    assert "down: a; across: b" in section


def test_numbers_on_a_heat_map_have_enough_contrast_in_every_cell():
    for share in range(101):
        fill, ink = re.findall(r"#([0-9a-f]{6})", cell(0, 0, 60, 0.5, share / 100))
        low, high = sorted(luminance(*bytes.fromhex(colour)) for colour in (fill, ink))
        assert (high + 0.05) / (low + 0.05) >= 4.5, share


def test_a_pair_without_a_result_has_no_cell(tmp_path):
    pairs = [f"a = {a}\nb = {b}" for a, b in ((1, 1), (1, 2), (2, 1))]
    section = grid_section(groups(tmp_path, pairs, seeds=(1,)))
    assert [len(picture.findall("{*}rect")) for picture in pictures_of(section)] == [3]
    assert '<th scope="row">2</th><td>61.0</td><td>-</td>' in section


@pytest.mark.parametrize(
    "settings",
    [
        ["size = 8", "size = 16"],  # too few for a curve
        ['kind = "a"', 'kind = "b"', 'kind = "c"'],  # no numbers
        ["a = 1\nb = 1\nc = 1", "a = 2\nb = 2\nc = 1", "a = 2\nb = 2\nc = 3"],  # three of them
        ["size = 8", "size = 16", ""],  # one run lacks the setting
        ["flag = true", "flag = false", "flag = 3"],
    ],
)
def test_runs_that_do_not_form_a_grid_have_no_figure(tmp_path, settings):
    assert grid_section(groups(tmp_path, settings, seeds=(1,))) == ""


def test_the_page_of_a_comparison_contains_the_figure(tmp_path):
    found = groups(tmp_path, ["size = 8", "size = 16", "size = 32"])
    assert varied(found).keys == ("size",) and "Accuracy over size" in comparison_page(found, [])
