"""A comparison has seeds in one row, names the view, chooses rounds by validation, and counts bytes to a goal."""

import json
import re
import xml.etree.ElementTree as ET
from statistics import mean, stdev

import numpy as np
import pytest

from protofleet.cli.main import main
from protofleet.lab.report.comparison import accuracy_target, name_without_seed, read_groups, write
from protofleet.lab.report.comparison_page import comparison_page
from protofleet.lab.report.comparison_tables import mean_and_deviation, tables
from protofleet.lab.report.drawing.axes import Axes
from protofleet.lab.report.drawing.canvas import WIDE, Key, end_labels
from protofleet.lab.report.drawing.charts import ChartLine, line_chart
from protofleet.lab.report.latex import latex_table
from protofleet.protocol.link.meter import human_bytes
from protofleet.runtime.command.errors import RunError
from tests.lab.report.pictures import pictures_of

DOMAINS = ("mnist", "street")
UP, DOWN = 100, 40  # payload bytes of a round


def finished(
    folder, name, test, *, validation=None, method="fedavg", reports="global", seed=1, domains=DOMAINS,
    settings="", up=UP, measured=None, **more,
):  # fmt: skip
    """Write a finished run to the disk.

    `test` has the mean accuracies in the order of measurement, with the last evaluation at the end.
    """
    rounds = len(test) - 1
    lines = []
    for i, value in enumerate(test):
        present = measured[i] if measured else domains
        seen = {domain: value + (0.05 if domain == domains[0] else -0.05) for domain in present}
        chosen = dict.fromkeys(present, (validation or test)[i])
        extra = {view: dict.fromkeys(present, value / 2) for view in more.get("views", ())}
        lines.append({
            "round": i + 1, "kind": "training" if i < rounds else "evaluation",
            "payload": {"up": {"weights": up if i < rounds else 0}, "down": {"weights": DOWN}},
            "accuracy": {reports: seen, **extra}, "validation": {reports: chosen, **extra},
            **({"pooled": {reports: value}} if more.get("pooled") else {}),
        })  # fmt: skip
    summary = {
        "name": name, "method": method, "reports": reports, "rounds": rounds, "seed": seed, "network": "mlp",
        "seconds": 1.5, "payload": {"up": {"weights": up * rounds}, "down": {"weights": DOWN * (rounds + 1)}},
        "wire": {"up": {"weights": up * rounds}, "down": {"weights": DOWN * (rounds + 1), "control": 16}},
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps(summary))
    toml = f'name = "{name}"\nseed = {seed}\nrounds = {rounds}\n{settings}\n[method]\nname = "{method}"\n'
    (folder / "experiment.toml").write_text(toml)
    return folder


@pytest.fixture
def runs(tmp_path):
    """Return runs of FedAvg with three seeds, which end with 0.8 on average, and one personal run of FedProto."""
    found = [
        finished(tmp_path / f"avg-s{s}", f"avg-s{s}", [0.1, 0.4, 0.7 + d, 0.75, 0.8 + d], seed=s)
        for s, d in ((1, 0.0), (2, 0.02), (3, -0.02))
    ]
    proto = [0.5, 0.73, 0.72, 0.6, 0.65]
    return [
        *found,
        finished(tmp_path / "proto", "proto", proto, method="fedproto", reports="personal", up=10),
    ]


def rows_of(runs, index=0, baseline="", share=0.9, view="reports"):
    groups = read_groups(runs, view)
    shown = tables(groups, accuracy_target(groups, baseline, share), share)[index]
    return [dict(zip(shown.head, row, strict=True)) for row in shown.rows]


LABELS = {
    "a-s1": "a",
    "a-seed12": "a",
    "a-s": "a-s",
    "x-s1-more": "x-s1-more",
    "cs1": "cs1",
    "a-s1-s2": "a-s1",
}


@pytest.mark.parametrize(("name", "label"), LABELS.items())
def test_a_label_is_the_name_without_its_seed(name, label):
    assert name_without_seed(name) == label


def test_runs_with_different_seeds_are_one_row_with_their_mean_and_deviation(runs):
    avg, proto = rows_of(runs)
    assert (avg["run"], avg["method"], avg["view"], avg["seeds"]) == ("avg", "fedavg", "global", "3")
    final_points = [0.80, 0.82, 0.78]
    assert avg["mean"] == f"{100 * mean(final_points):.1f} ± {100 * stdev(final_points):.1f}"
    street = [f - 0.05 for f in final_points]
    assert avg["street"] == f"{100 * mean(street):.1f} ± {100 * stdev(street):.1f}"
    assert (proto["run"], proto["view"], proto["seeds"], proto["mean"]) == ("proto", "personal", "1", "65.0")


def test_the_best_round_is_chosen_by_validation_and_never_by_test_accuracy(tmp_path):
    test, validation = [0.2, 0.9, 0.5, 0.6], [0.1, 0.3, 0.7, 0.7]
    one = finished(tmp_path / "a", "a", test, validation=validation)
    other = finished(tmp_path / "b", "b", test, validation=validation, reports="personal")
    a, b = rows_of([one, other], 1)
    assert (a["round"], a["mean"]) == ("2", "50.0")  # measured in round 3: the model after 2
    assert (b["round"], b["mean"]) == ("3", "50.0")
    assert "test samples have no influence on this choice" in tables(read_groups([one]), None, 0.9)[1].note


def test_a_run_without_validation_has_no_best_round(tmp_path):
    run = finished(tmp_path / "a", "a", [0.2, 0.9])
    path = run / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**line, "validation": {}}) + "\n" for line in lines))
    assert rows_of([run], 1)[0]["mean"] == "-"


def test_the_table_has_the_bytes_of_the_whole_run_on_the_wire(runs):
    avg, proto = rows_of(runs, 2)
    up, down = 4 * UP, 5 * DOWN
    assert (
        avg["tensors up"] == human_bytes(up)  # the same for all three seeds, so no deviation is written
        and avg["tensors down"] == human_bytes(down)
    )
    assert avg["on the wire"] == human_bytes(up + down + 16) and proto["tensors up"] == human_bytes(40)


def test_the_factor_of_the_codec_is_shown_only_if_a_run_has_a_codec(tmp_path, runs):
    assert "codec factor" not in rows_of(runs, 2)[0]
    coded = finished(tmp_path / "coded", "coded", [0.2, 0.8], method="fedlsa")
    path = coded / "summary.json"
    summary = json.loads(path.read_text())
    uncoded = {"up": {"weights": 5 * UP}, "down": {"weights": 10 * DOWN}}
    path.write_text(json.dumps(summary | {"uncoded": uncoded}))
    factors = {row["run"]: row["codec factor"] for row in rows_of([*runs, coded], 2)}
    # It sends UP once and DOWN twice.
    assert factors.pop("coded") == "5.0" and set(factors.values()) == {"-"}


def test_the_bytes_to_a_goal_are_those_of_the_rounds_before_the_measurement(runs):
    avg, proto = rows_of(runs, 2)
    # 90 % of 0.8 is 0.72. The second seed's line of round 3 has just 0.72, the others' lines of round 4 have 0.75.
    rounds = [3, 2, 3]
    crossed = [r * (UP + DOWN) for r in rounds]
    assert avg["rounds to 90%"] == f"{mean(rounds):.1f} ± {stdev(rounds):.1f}"
    assert avg["tensors to 90%"] == f"{human_bytes(mean(crossed))} ± {human_bytes(stdev(crossed))}"
    # A device's own model is measured after the training of its round, so that round reaches the goal.
    assert (proto["rounds to 90%"], proto["tensors to 90%"]) == ("2", human_bytes(2 * (10 + DOWN)))


def test_a_goal_shows_the_number_of_seeds_that_reach_it_or_a_dash(runs):
    avg, proto = rows_of(runs, 2, share=1.0)
    assert avg["rounds to 100%"] == "4 (2 of 3)" and proto["rounds to 100%"] == "-"


def test_the_last_evaluation_is_not_counted_as_a_training_round(tmp_path):
    run = finished(tmp_path / "a", "a", [0.1, 0.2, 0.9], reports="personal", method="fedavg")
    (row,) = rows_of([run], 2)
    assert (row["rounds to 90%"], row["tensors to 90%"]) == ("2", human_bytes(2 * UP + 3 * DOWN))


def test_a_baseline_can_be_named_and_the_error_for_an_unknown_one_lists_the_choices(runs):
    note = tables(read_groups(runs), accuracy_target(read_groups(runs), "proto", 0.5), 0.5)[2].note
    assert "32.5%, which is 50% of the final accuracy of proto (65.0%)" in note
    assert accuracy_target(read_groups(runs), "avg-s2", 0.9).baseline.name == "avg"
    with pytest.raises(RunError, match="no group has the name 'nix'; the groups are avg, proto"):
        accuracy_target(read_groups(runs), "nix", 0.9)


def test_a_baseline_with_a_name_that_ends_like_a_seed_is_found(tmp_path):
    """A trial of a sweep over data.seed has such a name."""
    trials = [finished(tmp_path / f"a-seed-{n}-s0", f"a-seed-{n}-s0", [0.5, 0.9], seed=0) for n in (1, 2)]
    assert accuracy_target(read_groups(trials), "a-seed-2", 0.9).baseline.name == "a-seed-2"


@pytest.mark.parametrize("share", [0, -1, 1.1, float("nan")])
def test_a_share_that_is_not_above_0_and_at_most_1_is_refused(runs, share):
    with pytest.raises(RunError, match="--share is"):
        accuracy_target(read_groups(runs), "", share)


def test_a_comparison_without_exactly_one_fedavg_has_no_baseline_and_names_the_option(runs, tmp_path):
    more = [*runs, finished(tmp_path / "more", "more", [0.1, 0.9])]
    for chosen in (runs[3:], more):
        groups = read_groups(chosen)
        assert accuracy_target(groups, "", 0.9) is None
        assert "--baseline" in tables(groups, None, 0.9)[2].note
        assert {row["tensors to 90%"] for row in rows_of(chosen, 2)} == {"-"}


def test_a_chosen_view_applies_to_all_rows_and_a_row_without_it_has_a_dash(tmp_path):
    one = finished(tmp_path / "a", "a", [0.2, 0.6], views=["personal-classifier"])
    other = finished(tmp_path / "b", "b", [0.2, 0.6], method="fedprox")
    a, b = rows_of([one, other], view="personal-classifier")
    assert (a["view"], a["mean"]) == ("personal-classifier", "30.0")
    assert (b["view"], b["mean"]) == ("personal-classifier", "-")
    assert rows_of([one, other], 2, view="personal-classifier")[1]["rounds to 90%"] == "-"
    comparison_page(groups := read_groups([one, other], "personal-classifier"), tables(groups, None, 0.9))
    with pytest.raises(
        RunError, match="the view 'x'; the measured views are reports, global, personal-classifier"
    ):
        read_groups([one, other], "x")


def test_a_domain_that_a_run_does_not_have_is_a_dash_and_does_not_count_in_the_mean(tmp_path):
    one = finished(tmp_path / "a", "a", [0.2, 0.6])
    other = finished(tmp_path / "b", "b", [0.2, 0.6], domains=("photo", "mnist"))
    a, b = rows_of([one, other])
    assert list(a)[4:] == ["mnist", "photo", "street", "mean"]
    assert (a["photo"], b["photo"], b["street"]) == ("-", "65.0", "-") and a["mean"] == b["mean"] == "60.0"


def test_a_domain_that_missed_a_round_counts_with_its_last_measurement(tmp_path):
    measured = [("mnist",), ("street",), ("mnist",), ("mnist",)]
    run = finished(tmp_path / "a", "a", [0.9, 0.3, 0.8, 0.6], reports="personal", measured=measured)
    (group,) = read_groups([run])
    points = group.runs[0].points("personal")
    assert [p.rounds for p in points] == [2, 3, 3]  # the domain street is unknown before round 2
    assert [p.accuracy["mean"] for p in points] == pytest.approx([(0.95 + 0.25) / 2, 0.55, 0.45])
    assert "last measurement" in tables([group], None, 0.9)[0].note
    whole = finished(tmp_path / "b", "b", [0.9, 0.3])
    assert "last measurement" not in tables(read_groups([whole]), None, 0.9)[0].note


def test_a_curve_has_only_the_rounds_in_which_all_seeds_were_measured(tmp_path):
    both = [("mnist",), ("street",), ("mnist", "street"), DOMAINS], [DOMAINS] * 4
    runs = [
        finished(
            tmp_path / f"a-s{i}",
            f"a-s{i}",
            [0.2, 0.3, 0.4, 0.5],
            seed=i,
            measured=measured,
            reports="personal",
        )
        for i, measured in enumerate(both)
    ]
    over_rounds, _ = pictures_of(page_of(runs))
    assert len(over_rounds.find("{*}polyline").get("points").split()) == 2  # rounds 2 and 3


def test_pooled_accuracy_is_a_column_if_a_run_has_it(tmp_path):
    one = finished(tmp_path / "a", "a", [0.2, 0.6], pooled=True)
    other = finished(tmp_path / "b", "b", [0.2, 0.6])
    assert "pooled" not in rows_of([other])[0]
    assert [row["pooled"] for row in rows_of([one, other])] == ["60.0", "-"]


def test_a_run_that_is_named_twice_counts_once_and_two_runs_of_one_seed_are_refused(runs, tmp_path):
    assert rows_of([runs[0], runs[0] / ".." / runs[0].name])[0]["seeds"] == "1"
    again = finished(tmp_path / "avg-s1.1", "avg-s1", [0.1, 0.4, 0.7, 0.75, 0.8], seed=1)
    with pytest.raises(RunError, match="one experiment with the same seed, 1; name only one"):
        read_groups([*runs, again])


def test_runs_with_the_same_name_and_different_settings_are_separate_rows(runs, tmp_path):
    other = finished(tmp_path / "other", "avg-s4", [0.1, 0.3], seed=4, settings="classes = 5")
    names = [row["run"] for row in rows_of([*runs, other])]
    assert names == [f"avg ({runs[0]})", "proto", f"avg ({other})"]


def test_settings_without_effect_and_data_seeds_do_not_separate_experiments(tmp_path):
    more = [
        'compute = "cpu"\n[data]\nseed = 1',
        "metrics_port = 9\n[pictures]\nsamples = 4\n[data]\nseed = 2",
    ]
    both = [
        finished(tmp_path / f"a-s{i}", f"a-s{i}", [0.1, 0.2], seed=i, settings=words)
        for i, words in enumerate(more)
    ]
    assert [row["seeds"] for row in rows_of(both)] == ["2"]
    for run in both:  # a coordinator without `protofleet run` writes no experiment.toml
        (run / "experiment.toml").unlink()
    assert [row["seeds"] for row in rows_of(both)] == ["2"]


def test_an_unfinished_or_damaged_run_is_refused_with_one_clear_line(runs, tmp_path):
    (tmp_path / "afile").touch()
    with pytest.raises(RunError, match="cannot be written: .*; name another place"):
        write(tmp_path / "afile" / "page.html", "")
    with pytest.raises(RunError, match="holds no run: there is no summary.json in it; name only the other 4"):
        read_groups([*runs, tmp_path])
    put_aside = finished(tmp_path / "early.2", "early", [0.1, 0.2])
    for name in ("begun", "late"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.toml").touch()
    with pytest.raises(RunError) as error:
        read_groups([tmp_path / "early", *runs, tmp_path, *(tmp_path / name for name in ("begun", "late"))])
    assert str(error.value) == (
        f"{tmp_path}/early does not exist; {tmp_path}/begun, {tmp_path}/late hold no finished run: "
        f"there is no summary.json in them; finish them first; {tmp_path} holds no run: there is no summary.json "
        f"in it; earlier runs are in {put_aside}; name only the other {len(runs)}"
    )
    for content, words in (
        ("{", "cannot be read"),
        ("[]", "is not a summary of a run"),
        ("{}", "has no 'name'"),
    ):
        (runs[0] / "summary.json").write_text(content)
        with pytest.raises(RunError, match=words):
            read_groups(runs)


def test_a_deviation_needs_two_values():
    assert (
        mean_and_deviation([], str) == "-"
        and mean_and_deviation([0.25], str) == "0.25"
        and mean_and_deviation([1, 3], "{:.2f}".format) == "2.00 ± 1.41"
    )


# Written files


def test_plain_text_tables_have_aligned_columns(runs):
    groups = read_groups(runs)
    for shown in tables(groups, accuracy_target(groups, "", 0.9), 0.9):
        title, *rows = shown.text().splitlines()[: len(shown.rows) + 2]
        assert title == shown.title and len({len(row) for row in rows}) == 1


def test_markdown_tables_have_the_form_of_github(runs):
    groups = read_groups(runs)
    for shown in tables(groups, None, 0.9):
        text = shown.markdown()
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert len(rows) == len(groups) + 2 and len({row.count("|") for row in rows}) == 1
        assert set(rows[1]) <= set("|-: ") and text.startswith("### ") and shown.note in text


def test_columns_of_words_are_left_aligned_in_every_format(runs):
    groups = read_groups(runs)
    shown = tables(groups, None, 0.9)[0]
    assert shown.head[:4] == ["run", "method", "view", "seeds"]
    assert "| --- | --- | --- | ---: |" in shown.markdown()
    assert r"\begin{tabular}{lllrrrr}" in latex_table(shown)
    html = page_of(runs)
    assert '<th scope="col" class="word">view</th><th scope="col">seeds</th>' in html
    assert '<td class="word">global</td><td>3</td>' in html


def test_a_hash_in_the_settings_is_shortened_and_its_title_has_the_whole_hash(runs, tmp_path):
    one, other = "a1" * 32, "b2" * 32
    for name, digest in (("one", one), ("other", other)):
        finished(tmp_path / name, name, [0.1, 0.2], settings=f'plugins.method = "{digest}"')
    html = page_of([tmp_path / "one", tmp_path / "other"])
    assert f'<td><span title="{one}">a1a1a1a1a1a1…</span></td>' in html and f">{other}" not in html


def test_the_note_without_a_baseline_names_the_groups_that_run_fedavg(runs, tmp_path):
    two = [finished(tmp_path / name, name, [0.1, 0.2]) for name in ("one", "two")]
    (*_, shown) = tables(read_groups(two), None, 0.9)
    assert shown.note == "There is no baseline: 2 groups run fedavg, one, two; name one with --baseline."
    none = [finished(tmp_path / "none", "none", [0.1, 0.2], method="fedproto")]
    (*_, shown) = tables(read_groups(none), None, 0.9)
    assert "or compare with one group that runs fedavg" in shown.note


def test_the_names_of_all_lines_are_at_the_end_of_the_longest_line(runs):
    """Names at the ends of shorter lines would cover other lines."""
    lines = [
        ChartLine("long", [(1, 0.1), (20, 0.9)], "#000"),
        ChartLine("short", [(1, 0.1), (5, 0.5)], "#111"),
    ]
    (picture,) = pictures_of(line_chart(lines, str, "x", "y"))
    places = {node.text: node.get("x") for node in picture.iter() if node.tag.endswith("text")}
    assert places["short 0.5"] == places["long 0.9"]


def page_of(runs):
    groups = read_groups(runs)
    return comparison_page(groups, tables(groups, accuracy_target(groups, "", 0.9), 0.9))


def test_the_page_has_no_external_files_and_has_curves_over_rounds_and_bytes(runs):
    html = page_of(runs)
    for external in ("http://", "https://", "<script", "<link", "@import"):
        assert external not in html.replace("http://www.w3.org/2000/svg", "")
    over_rounds, over_bytes = pictures_of(html)
    for picture in (over_rounds, over_bytes):
        curves = picture.findall("{*}polyline")
        assert [c.find("{*}title").text for c in curves] == ["avg", "proto"]
        assert len(picture.findall("{*}polygon")) == 1  # a band for the one with several seeds
    # the evaluation stands for the last round of a personal model
    assert [len(c.get("points").split()) for c in over_rounds.findall("{*}polyline")] == [5, 4]
    assert str(runs[0]) in html and "avg: global; proto: personal" in html


def test_the_axis_of_bytes_is_logarithmic_if_runs_differ_much(runs, tmp_path):
    assert "axis is logarithmic" not in page_of(runs)
    heavy = finished(tmp_path / "heavy", "heavy", [0.1, 0.5, 0.6], method="fedprox", up=10**6)
    html = page_of([*runs, heavy])
    assert "axis is logarithmic" in html
    silent = finished(tmp_path / "silent", "silent", [0.1, 0.5], method="singleset", up=0)
    path = silent / "rounds.jsonl"
    path.write_text(path.read_text().replace(f'"weights": {DOWN}', '"weights": 0'))
    assert len(pictures_of(page_of([*runs, heavy, silent]))) == len(pictures_of(page_of([silent]))) == 2


def keep_margins(run, gap):
    """Save features of a round, with prototypes `gap` apart and local class means 1 apart."""
    folder = run / "devices" / "a" / "pictures"
    folder.mkdir(parents=True)
    rows, labels = np.array([[0.0], [1.0]], np.float32), np.array([0, 1])
    more = {"received.prototypes": gap * rows, "received.labels": labels}
    np.savez(folder / "round-0004.npz", features=rows, labels=labels, **more)


def test_margins_are_compared_by_run_if_pictures_were_kept(runs):
    assert ">Margins</h2>" not in page_of(runs)
    keep_margins(runs[0], 2.0)
    keep_margins(runs[1], 4.0)
    keep_margins(runs[3], 0.5)
    html = page_of(runs)
    picture = pictures_of(html)[2]
    words = [node.text for node in picture.iter() if node.tag.endswith("title")]
    assert words.count("avg: 3.00") == 2 and words.count("proto: 0.50") == 2
    assert words.count("largest local: 1.00") == 4
    cells = re.findall(
        r"<tr><th scope=\"row\">([a-z]+)</th><td>([\d.]+)</td><td>([\d.]+)</td><td>([\d.]+)</td></tr>", html
    )
    assert cells == [("avg", "3.000", "1.000", "3.00"), ("proto", "0.500", "1.000", "0.50")]


def test_the_command_compare_prints_tables_and_writes_both_files(runs, tmp_path, capsys):
    names = [str(run) for run in runs]
    files = tmp_path / "new" / "a.md", tmp_path / "new" / "a.html"
    assert main(["compare", *names, "--markdown", str(files[0]), "--html", str(files[1])]) == 0
    assert "80.0 ± 2.0" in capsys.readouterr().out
    assert "| avg | fedavg | global | 3 |" in files[0].read_text() and "<svg" in files[1].read_text()
    assert main(["compare", *names, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (avg,) = (row for row in said["rows"] if row["name"] == "avg")
    assert mean(point["accuracy"]["mean"] for point in avg["final"]) == pytest.approx(0.8)
    assert (
        len(avg["seeds"]) == len(avg["bytes"]) == 3 and said["tables"][0]["rows"][0]["mean"] == "80.0 ± 2.0"
    )
    assert main(["compare", *names, "--quiet"]) == 0 and capsys.readouterr().out == ""
    for wrong in (["--baseline", "nix"], ["--view", "nix"], ["--html", str(tmp_path)], ["--share", "2"]):
        assert main(["compare", *names, *wrong]) == (2 if "--share" in wrong else 1)
        assert len(capsys.readouterr().err.splitlines()) == 1


# Axes


def test_ticks_of_axes_are_round_numbers():
    assert Axes(1, 15, 0, 1).x_ticks(12) == [2, 4, 6, 8, 10, 12, 14]
    assert Axes(0, 100, 0, 1).x_ticks(12) == list(range(0, 101, 10))
    assert Axes(0, 9, 0, 1).x_ticks(12) == list(range(10))
    assert Axes(0, 3.3e6, 0, 1).x_ticks(6) == [0, 1e6, 2e6, 3e6]
    assert Axes(150, 2.1e4, 0, 1, log_x=True).x_ticks(6) == pytest.approx(
        [200, 500, 1000, 2000, 5000, 1e4, 2e4]
    )
    assert Axes(150, 2.1e7, 0, 1, log_x=True).x_ticks(6) == pytest.approx([1e3, 1e4, 1e5, 1e6, 1e7])


def test_equal_ratios_have_equal_distances_on_a_logarithmic_axis():
    frame = Axes(1, 10_000, 0, 1, log_x=True)
    places = [frame.x(10**i) for i in range(5)]
    assert np.allclose(np.diff(places), places[1] - places[0])


def test_names_at_the_ends_of_lines_do_not_overlap_and_are_inside_the_picture():
    ends = [(250.0 + i, 600.0, Key(f"line {i}", "#000", line=True)) for i in range(12)]
    places = sorted(float(y) for y in re.findall(r' y="([\d.]+)"', end_labels(ends, WIDE)))
    assert min(np.diff(places)) >= 13.9 and places[-1] <= 290


@pytest.mark.parametrize("log", [False, True])
def test_a_chart_can_be_drawn_with_few_or_no_points(log):
    for points in ([], [(3.0, 0.5)], [(3.0, 0.5), (3.0, 0.6)]):
        band = [(x, y - 0.1, y + 2.0) for x, y in points]
        chart = line_chart([ChartLine("a", points, "#000", band=band, dash="2 3")], str, "x", "y", log_x=log)
        assert ET.fromstring(chart).tag == "figure"


def test_the_last_evaluation_of_personal_models_is_never_the_best_round(tmp_path):
    """It may measure another model, such as one after a last fit. For a global model it belongs to the last round."""
    for reports, best in (("personal", 2), ("global", 3)):
        folder = tmp_path / reports
        finished(folder, "run", [0.1, 0.4, 0.3, 0.9], reports=reports)
        (group,) = read_groups([folder])
        (point,) = group.best_points()
        assert point.rounds == best
    assert point.accuracy["mean"] == pytest.approx(0.9)
