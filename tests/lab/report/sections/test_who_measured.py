"""A point of a curve names the devices that measured it, and a sampled cohort is never treated as all devices."""

from protofleet.coordinator.observe.curves import measured, measurements
from protofleet.lab.report.comparison import ComparedRun, best_by_validation
from protofleet.lab.report.finished_run import FinishedRun
from protofleet.lab.report.sections.accuracy import accuracy_section, domain_lines

ALL, SAMPLED = {"devices": 10, "asked": 10, "present": 10}, {"devices": 2, "asked": 2, "present": 10}


def line(number, view, value, who=ALL, kind="training", evaluation=None):
    domains = {"a": value, "b": value - 0.1}
    return {
        "round": number, "kind": kind, "participants": ["d"] * who["devices"],
        "phases": [{"phase": "train", "asked": [f"d{i}" for i in range(who["asked"])]}],
        "accuracy": {view: domains}, "validation": {view: domains}, "loss": {view: domains},
        "measured": {view: who}, "evaluation": evaluation,
        "payload": {"up": {"weights": 100}, "down": {"weights": 40}},
    }  # fmt: skip


def by_all(view, value):
    domains = {"a": value, "b": value - 0.1}
    return {
        "asked": ["d"] * 10, "answered": ["d"] * 10, "payload": {"down": {"weights": 40}},
        "accuracy": {view: domains}, "validation": {view: domains}, "loss": {view: domains},
    }  # fmt: skip


def page_of(lines, view, rounds):
    found = measured(lines, view)
    summary = {"reports": view, "accuracy": found, "rounds": rounds, "views": {view: found}}
    return FinishedRun(None, lines, summary)


def sampled_global():
    """Return the lines of a run whose sampled cohorts measure 0.99 or 0.98, and all devices 0.5 and 0.6."""
    lines = [line(n, "global", 0.99, SAMPLED) for n in (1, 2)]
    lines += [line(3, "global", 0.5, ALL, evaluation=by_all("global", 0.5)), line(4, "global", 0.98, SAMPLED)]
    return [*lines, line(5, "global", 0.6, ALL, kind="evaluation")]


def test_best_by_validation_uses_only_measurements_by_all_present_devices():
    lines = sampled_global()
    assert measured(lines, "global")["best_by_validation"]["point"] == 4
    run = ComparedRun(None, {"rounds": 4}, lines, "")
    assert best_by_validation(run.points("global"), "global").rounds == 4
    assert [point.rounds for point in run.points_by_all("global")] == [2, 4]


def test_the_report_states_which_devices_measured_each_point():
    page = accuracy_section(page_of(sampled_global(), "global", 4))
    assert "all present devices: 10" in page and "a sampled cohort: 2 of 10 present devices" in page
    assert "The lines by domain go through the points that all present devices measured" in " ".join(
        page.split()
    )
    lines = {one.name: one.points for one in domain_lines(page_of(sampled_global(), "global", 4), "accuracy")}
    assert lines["a"] == [(2, 0.5), (4, 0.6)]
    assert [x for x, _ in lines["mean of sampled cohorts"]] == [0, 1, 3]


def test_the_report_of_a_run_with_all_devices_does_not_mention_sampled_cohorts():
    page = accuracy_section(page_of([line(n, "global", 0.5) for n in (1, 2, 3)], "global", 2))
    assert "all present devices: 10" in page and "sampled" not in page


def test_the_points_of_a_personal_method_are_at_its_training_rounds():
    """The last evaluation is not a round. An earlier version numbered the points from 1 to rounds + 1."""
    lines = [line(n, "personal", 0.5) for n in (1, 2, 3)] + [line(4, "personal", 0.6, kind="evaluation")]
    drawn = {one.name: one.points for one in domain_lines(page_of(lines, "personal", 3), "accuracy")}
    assert [x for x, _ in drawn["mean"]] == [1, 2, 3, 3]
    assert [point.rounds for point in ComparedRun(None, {"rounds": 3}, lines, "").points("personal")] == [
        1,
        2,
        3,
        3,
    ]


def test_the_curve_of_a_sampled_personal_method_uses_evaluations_between_rounds():
    lines = [line(1, "personal", 0.9, SAMPLED), line(2, "personal", 0.9, SAMPLED)]
    lines += [line(3, "personal", 0.9, SAMPLED, evaluation=by_all("personal", 0.4))]
    lines += [line(4, "personal", 0.5, kind="evaluation")]
    drawn = {one.name: one.points for one in domain_lines(page_of(lines, "personal", 3), "accuracy")}
    assert drawn["a"] == [(2, 0.4), (3, 0.5)]
    points = ComparedRun(None, {"rounds": 3}, lines, "").points("personal")
    assert [(p.rounds, p.by_all, p.bytes) for p in points] == [
        (1, False, 140), (2, False, 280), (2, True, 320), (3, False, 420), (3, True, 560),
    ]  # fmt: skip


def test_the_number_of_asked_devices_decides_for_lines_of_an_earlier_version():
    lines = sampled_global()
    for one in lines:
        del one["measured"], one["evaluation"]
    lines[2]["phases"][0]["asked"] = ["d0", "d1"]
    assert [point.by_all for point in measurements(lines, "global")] == [False, False, False, False, True]
