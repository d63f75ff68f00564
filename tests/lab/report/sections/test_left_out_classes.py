"""A run reports at its end, and in its report, which classes and which devices are not in the head."""

import json

import pytest

from protofleet.coordinator.observe.rounds_file import sealed_line
from protofleet.lab.report.run_page import final_table, write_report
from tests.lab.report.finished import whole_line, whole_run


def run_of(folder, figures, names=(), devices=({},)):
    """Return the folder of a run; `devices` has more keys of its lines, the last of them for all later lines."""
    whole_run(folder)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "class_names": list(names)}))
    more = [*devices, *[devices[-1]] * 5]
    lines = [{**whole_line(number, 4), "figures": figures, **more[number - 1]} for number in range(1, 6)]
    (folder / "rounds.jsonl").write_text("".join(map(sealed_line, lines)))
    return folder


FIGURES = {"answers.kept": 3.0, "devices.0": 3.0, "devices.1": 0.0, "devices.2": 2.0}


@pytest.mark.parametrize(
    ("names", "nobodys", "fewer"),
    [(("cat", "dog<", "owl"), "dog<", "owl"), ((), "class 1", "class 2")],
)
def test_classes_that_devices_left_out_are_named_at_the_end_and_in_the_report(
    tmp_path, names, nobodys, fewer
):
    folder = run_of(tmp_path, FIGURES, names)
    nobody = f"o device has enough samples of {nobodys}: never predicted"
    some = f"lasses that not all devices have sent: {fewer} by 2 of 3; the other devices have too few samples"
    assert f"\nn{nobody}\nc{some}" in final_table(folder)
    page = write_report(folder).read_text()
    assert f"<p>N{nobody.replace('<', '&lt;')}.</p><p>C{some}" in page


def test_classes_left_out_in_the_last_round_are_named_if_no_answers_are_kept(tmp_path):
    figures = {"devices.0": 2.0, "devices.1": 0.0, "devices.2": 1.0}
    folder = run_of(tmp_path, figures, ("cat", "dog<", "owl"), ({"participants": ["a", "b"]},))
    nobody = "o device of the last round has enough samples of dog< (method.least_samples)"
    some = "lasses that not all devices of the last round have sent: owl by 1 of 2; the other devices have too few"
    assert f"\nn{nobody}\nc{some}" in final_table(folder)
    page = write_report(folder).read_text()
    assert f"<p>N{nobody.replace('<', '&lt;')}.</p><p>C{some}" in page


@pytest.mark.parametrize("figures", [{}, {"devices.0": 1.0}, {"answers.kept": 1.0, "devices.0": 1.0}])
def test_no_class_is_named_if_all_devices_have_sent_all_classes(tmp_path, figures):
    found = final_table(run_of(tmp_path, figures))
    assert "never predicted" not in found and "not all devices" not in found


def test_unused_and_removed_devices_are_named_at_the_end_and_in_the_report(
    tmp_path,
):
    early, late = {"unused": ["d", "e<"], "removed": ["x"]}, {"unused": ["e<"], "removed": []}
    folder = run_of(tmp_path, FIGURES, devices=(early, late))
    idle = (
        "evices that take no part in the head: e<; no class has enough samples there (method.least_samples)"
    )
    gone = "evices whose answers were deleted, because their enrolment had ended: x"
    assert f"\nd{idle}\nd{gone}" in final_table(folder)
    page = write_report(folder).read_text()
    assert f"<p>D{idle.replace('<', '&lt;')}.</p><p>D{gone}.</p>" in page
