"""Pictures of features come from files of runs, are measured as in FedLSA's fig. 1, and have a fixed layout."""

import math
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protofleet.lab.report.drawing.canvas import WIDE
from protofleet.lab.report.drawing.palette import COLOURS
from protofleet.lab.report.drawing.scatter import (
    DOT_SHAPES,
    SHAPES,
    TITLE_HEIGHT,
    Dots,
    LegendEntry,
    Mark,
    Panel,
    PanelScale,
    outline,
    scatter_plot,
)
from protofleet.lab.report.sections import features as sections
from protofleet.lab.report.sections.margins import (
    class_margins,
    class_means,
    local_margins,
    margins_of_run,
)
from protofleet.lab.report.sections.plot_style import PlotStyle
from protofleet.lab.report.sections.projection import evenly_spaced, project, project_snapshots, subsample
from protofleet.lab.report.sections.snapshots import (
    ANCHOR,
    GLOBAL,
    LOCAL,
    ClassPoints,
    Snapshot,
    read_snapshots,
    received_points,
    saved_rounds,
    sent_points,
)
from tests.lab.report.pictures import pictures_of

CLASSES, SIZE = 3, 4
DEVICES = ("mnist", "street")


def dice(seed=0):
    return np.random.default_rng(seed)


def save(run, device, number, **arrays):
    folder = run / "devices" / device / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"round-{number:04}.npz", **{name.replace("__", "."): a for name, a in arrays.items()})
    return folder / f"round-{number:04}.npz"


def features(n=12, seed=0, classes=CLASSES, size=SIZE):
    """Return features in clouds around the unit vectors of their classes, and the labels."""
    labels = np.arange(n) % classes
    points = np.eye(classes, size)[labels] + 0.1 * dice(seed).normal(size=(n, size))
    return points.astype(np.float32), labels


@pytest.fixture
def run(tmp_path):
    """Return a run of two devices that receive anchors in rounds 1, 2 and the last evaluation (3)."""
    for i, device in enumerate(DEVICES):
        for number in (1, 2, 3):
            x, y = features(seed=10 * i + number)
            anchors = 2 * np.eye(CLASSES, SIZE, dtype=np.float32)
            save(
                tmp_path,
                device,
                number,
                features=x,
                labels=y,
                domain=np.array(device),
                received__anchors=anchors,
            )
    return tmp_path


@pytest.fixture
def clusters(tmp_path):
    """Save features as `fedplcc` does, with several prototypes for a class on devices and on the server."""
    for i, device in enumerate(DEVICES):
        x, y = features(seed=i)
        local = {"sent__prototypes": x[:6], "sent__labels": y[:6], "sent__counts": np.arange(1, 7)}
        save(tmp_path, device, 4, features=x, labels=y, domain=np.array(device), **local)
        shared = {
            "received__prototypes": x[:4], "received__labels": np.array([0, 1, 2, 0]),
            "received__shares": np.array([0.75, 1.0, 1.0, 0.25], np.float32),
        }  # fmt: skip
        save(tmp_path, device, 5, features=x, labels=y, domain=np.array(device), **shared)
    return tmp_path


def drawn(html):
    """Return every picture, parsed, and check that no number in the page is nan or inf."""
    assert "nan" not in html.replace("nance", "") and "inf" not in html
    return pictures_of(html)


def titles(picture):
    return [node.text for node in picture.iter() if node.tag.endswith("title")]


# Margins


def naive_margins(points, labels):
    found = {}
    for i, c in enumerate(labels):
        for j, other in enumerate(labels):
            if c != other:
                gap = math.sqrt(sum((a - b) ** 2 for a, b in zip(points[i], points[j], strict=True)))
                found[int(c)] = min(gap, found.get(int(c), math.inf))
    return found


@given(st.lists(st.integers(0, 3), max_size=8), st.integers(0, 9))
def test_a_margin_is_the_least_distance_to_a_row_of_another_class(labels, seed):
    points = dice(seed).normal(size=(len(labels), 3))
    found = class_margins(points, np.array(labels, dtype=np.int64))
    assert found == pytest.approx(naive_margins(points, labels))


def snapshot(x, y, device="a", **more):
    return Snapshot(device, 1, device, np.asarray(x, float), np.asarray(y), **more)


def test_the_local_margin_of_a_class_is_the_largest_margin_of_any_device():
    wide = snapshot([[0, 0], [0, 0], [4, 0], [6, 0]], [0, 0, 1, 1], "wide")  # means 5 apart
    narrow = snapshot([[0, 0], [0, 1]], [0, 2], "narrow")
    alone = snapshot([[9, 9]], [1], "alone")
    empty = snapshot(np.zeros((0, 0)), [], "empty")
    assert local_margins([narrow, wide, alone, empty]) == {0: 5.0, 1: 5.0, 2: 1.0}


def test_means_of_unit_vectors_have_unit_length():
    means, classes = class_means(np.array([[1.0, 0], [0, 1.0], [0, -1.0]]), np.array([0, 0, 1]))
    assert np.allclose(means, [[math.sqrt(0.5)] * 2, [0, -1]]) and classes.tolist() == [0, 1]
    means, _ = class_means(np.array([[2.0, 0], [0, 2.0]]), np.array([0, 0]))
    assert np.allclose(means, [[1, 1]])


def test_the_margins_of_a_run_are_from_its_last_saved_round_with_received_arrays(run):
    x, y = features()
    save(run, "mnist", 7, features=x, labels=y)
    number, local, shared = margins_of_run(run)
    assert number == 3 and shared == {ANCHOR: pytest.approx(dict.fromkeys(range(CLASSES), 2 * math.sqrt(2)))}
    expected = local_margins(read_snapshots(saved_rounds(run)[3]))
    assert local == expected and set(local) == set(range(CLASSES))


def test_a_run_without_pictures_has_no_margins_and_no_sections(tmp_path):
    assert margins_of_run(tmp_path) == (0, {}, {})
    assert sections.feature_sections(tmp_path, 3) == ""


def test_all_arrays_are_scaled_to_unit_length_if_the_anchors_have_unit_length(tmp_path):
    x, y = features()
    anchors = np.eye(CLASSES, SIZE)
    save(tmp_path, "a", 1, features=7 * x, labels=y, received__anchors=anchors, sent__prototypes=5 * x[:3])
    save(tmp_path, "b", 1, features=7 * x, labels=y)
    for found in read_snapshots(saved_rounds(tmp_path)[1]):
        assert np.allclose(np.linalg.norm(found.features, axis=1), 1)
        assert all(np.allclose(np.linalg.norm(a, axis=1), 1) for a in found.sent.values())
    save(tmp_path, "a", 2, features=7 * x, labels=y, received__anchors=3 * anchors)
    (found,) = read_snapshots(saved_rounds(tmp_path)[2])
    assert np.allclose(found.features, 7 * x)


# Reading


def test_saved_rounds_and_devices_are_sorted_and_other_files_are_ignored(run):
    (run / "devices" / "mnist" / "pictures" / "round-0002.new").write_bytes(b"")
    (run / "devices" / "mnist" / "pictures" / "round-x.npz").write_bytes(b"")
    found = saved_rounds(run)
    assert list(found) == [1, 2, 3]
    assert [p.parent.parent.name for p in found[2]] == list(DEVICES)


def test_a_damaged_file_is_treated_as_missing(run):
    for path, content in zip(saved_rounds(run)[2], (b"", b"PK\x03\x04 torn"), strict=True):
        path.write_bytes(content)
    assert read_snapshots(saved_rounds(run)[2]) == []
    (run / "devices" / "mnist" / "pictures" / "round-0003.npz").write_bytes(b"no archive")
    assert [s.device for s in read_snapshots(saved_rounds(run)[3])] == ["street"]
    assert drawn(sections.feature_sections(run, 2))


X, Y = features()
BOTH = {"features": X, "labels": Y}
SENT = {**BOTH, "sent__prototypes": X[:3]}
RECEIVED = {**BOTH, "received__prototypes": X[:3]}
ODD = {
    "nothing at all": {},
    "no labels": {"features": X},
    "labels of another length": {"features": X, "labels": Y[:3]},
    "features that are no table": {"features": X[0], "labels": Y},
    "no samples": {"features": X[:0], "labels": Y[:0]},
    "one sample": {"features": X[:1], "labels": Y[:1]},
    "one class": {"features": X, "labels": 0 * Y},
    "all the same": {"features": 0 * X + 1, "labels": Y},
    "not finite": {"features": np.where(np.arange(12)[:, None] % 2, X, np.inf), "labels": Y},
    "never finite": {"features": X * np.nan, "labels": Y},
    "one number a sample": {"features": X[:, :1], "labels": Y},
    "huge": {"features": X * np.float32(1e38), "labels": Y},
    "half precision": {"features": X.astype(np.float16), "labels": Y},
    "anchors of another size": {**BOTH, "received__anchors": np.eye(3, 9)},
    "anchors that are not finite": {**BOTH, "received__anchors": np.full((3, SIZE), np.nan)},
    "anchors that are no table": {**BOTH, "received__anchors": np.float32(1)},
    "no table beside unit anchors": {
        **BOTH,
        "received__anchors": np.eye(3, SIZE),
        "sent__prototypes": X[0, 0],
    },
    "prototypes without labels": RECEIVED,
    "prototypes with labels of another length": {**RECEIVED, "received__labels": Y[:2]},
    "shares of another length": {**RECEIVED, "received__labels": Y[:3], "received__shares": Y[:1]},
    "a prototype of an unknown class": {**RECEIVED, "received__labels": Y[:3] + 90},
    "two prototypes of one class": {**SENT, "sent__labels": np.array([1, 1, 2])},
    "counts of nothing": {**SENT, "sent__labels": 0 * Y[:3], "sent__counts": 0 * Y[:3]},
}


@pytest.mark.parametrize("arrays", ODD.values(), ids=ODD)
def test_files_with_unusual_arrays_do_not_stop_the_drawing(tmp_path, arrays):
    save(tmp_path, "a", 1, **arrays)
    drawn(sections.feature_sections(tmp_path, 1))
    save(tmp_path, "b", 1, features=X, labels=Y, domain=np.array("other <domain>"))
    assert drawn(sections.feature_sections(tmp_path, 1))


def test_rows_without_labels_belong_to_one_class_each_and_broken_rows_are_left_out():
    rows = np.stack([np.ones(2), np.full(2, np.nan), 3 * np.ones(2)])
    (class_points,) = received_points([snapshot(X, Y, received={"prototypes": rows})])
    assert (class_points.kind, class_points.labels.tolist(), class_points.sizes.tolist()) == (
        GLOBAL,
        [0, 2],
        [1, 1],
    )
    sent = {"prototypes": rows, "labels": np.array([4, 5, 5]), "counts": np.array([7, 8, 9])}
    class_points = sent_points(snapshot(X, Y, "me", sent=sent))
    assert (class_points.kind, class_points.labels.tolist(), class_points.sizes.tolist()) == (
        LOCAL,
        [4, 5],
        [7, 9],
    )
    assert class_points.device == "me" and sent_points(snapshot(X, Y)) is None


def test_received_arrays_are_read_from_the_first_device_that_has_them():
    late = snapshot(X, Y, "a")
    known = snapshot(X, Y, "b", received={"anchors": np.eye(2), "prototypes": np.eye(3)})
    another = snapshot(X, Y, "c", received={"anchors": np.eye(5)})
    found = received_points([late, known, another])
    assert [(m.kind, len(m.points)) for m in found] == [(ANCHOR, 2), (GLOBAL, 3)]


# Layout


def test_rounds_are_chosen_evenly_with_the_first_and_the_last():
    assert evenly_spaced([1, 2, 3], 6) == [1, 2, 3]
    chosen = evenly_spaced(list(range(1, 101)), 6)
    assert len(chosen) == 6 and chosen[0] == 1 and chosen[-1] == 100 and chosen == sorted(set(chosen))


def test_a_projection_is_reproducible_and_keeps_the_nearest_sample_in_the_same_class():
    x, y = features(60, size=64)
    positions = project(x.astype(float))
    assert np.array_equal(positions, project(x.astype(float)))
    for i in range(60):
        others = np.delete(np.arange(60), i)
        nearest = others[np.square(positions[others] - positions[i]).sum(axis=1).argmin()]
        assert y[nearest] == y[i]


@settings(max_examples=15, deadline=None)
@example(8, 2, 1.0, True)  # their mean is not exactly equal to any of them
@given(st.integers(1, 20), st.integers(1, 5), st.sampled_from([0.0, 1e-30, 1.0, 1e30]), st.booleans())
def test_the_projection_of_finite_points_is_finite(n, size, scale, same):
    points = scale * dice(n).normal(size=(n, size))
    if same:
        points[:] = points[0]
    positions = project(points)
    assert positions.shape == (n, 2) and np.isfinite(positions).all()


def test_a_subsample_keeps_the_share_of_each_class_and_is_reproducible():
    labels = np.repeat([2, 0, 1], [100, 200, 700])
    whole = snapshot(np.arange(1000)[:, None], labels)
    few = subsample(whole, 100)
    assert [int((few.labels == c).sum()) for c in range(3)] == pytest.approx([20, 70, 10], abs=1)
    assert np.array_equal(labels[few.features[:, 0].astype(int)], few.labels)
    assert np.array_equal(few.features, subsample(whole, 100).features)
    assert len(subsample(whole, 5000).labels) == 1000
    turns = snapshot(np.zeros((1001, 1)), np.arange(1001) % 10)  # every tenth sample would be of one class
    assert np.bincount(subsample(turns, 101).labels).tolist() == pytest.approx([10] * 10, abs=1)


def test_a_layout_is_one_projection_of_features_and_class_points_with_a_limit():
    a, b = snapshot(*features(30), "a"), snapshot(*features(10), "b")
    odd = snapshot(*features(9, size=7), "odd")
    class_points = ClassPoints(ANCHOR, np.eye(3, SIZE), np.arange(3), np.ones(3))
    other = ClassPoints(GLOBAL, np.eye(3, 7), np.arange(3), np.ones(3))
    layout = project_snapshots([a, odd, b], [class_points, other], limit=20)
    assert [s.device for s in layout.snapshots] == ["a", "b"] and layout.class_points == [class_points]
    assert [len(positions) for positions in layout.sample_positions] == [15, 5] and len(
        layout.class_positions[0]
    ) == 3
    together = np.concatenate([*(s.features for s in layout.snapshots), class_points.points])
    assert np.array_equal(
        project(together), np.concatenate([*layout.sample_positions, *layout.class_positions])
    )
    assert project_snapshots([snapshot(np.zeros((0, 0)), [])], [class_points]) is None


# Sections


def test_every_class_has_a_bar_for_the_margin_and_one_for_the_local_margin(run):
    (picture,) = drawn(sections.margins_section(run, 2))
    bars = [t for t in titles(picture) if t]
    assert sum(t.startswith("anchors:") for t in bars) == CLASSES
    assert sum(t.startswith("largest local:") for t in bars) == CLASSES
    assert min(float(bar.get("x")) for bar in picture.findall("{*}rect")) > WIDE.left  # also that of class 0
    text = sections.margins_section(run, 2)
    _, local, _ = margins_of_run(run)
    mean = sum(local.values()) / CLASSES
    assert "last evaluation" in text and f"anchors {2 * math.sqrt(2):.3f}" in text
    assert f"({2 * math.sqrt(2) / mean:.2f} times the local)" in text and f"{mean:.3f}" in text


def test_features_have_a_panel_by_class_and_by_device_for_every_saved_round(run):
    html = sections.features_section(run, 2)
    by_class, by_device = drawn(html)
    for picture in (by_class, by_device):
        words = [node.text for node in picture.iter() if node.get("class") == "title"]
        assert [w for w in words if "round" in w or "evaluation" in w] == [
            "round 1",
            "round 2",
            "last evaluation",
        ]
    assert titles(by_class).count("class 1, mnist") == 3 and titles(by_class).count("anchor of class 1") == 3
    assert titles(by_device).count("street") == 3
    fills = {node.get("fill") for node in by_class.iter() if node.get("class") == "dots"}
    assert {COLOURS[c] for c in range(CLASSES)} <= fills


def test_one_saved_round_has_two_panels_in_one_picture(run):
    for number in (1, 2):
        for path in saved_rounds(run)[number]:
            path.unlink()
    (picture,) = drawn(sections.features_section(run, 2))
    words = [node.text for node in picture.iter() if node.get("class") == "title"]
    assert words[:2] == ["last evaluation: colour is class", "last evaluation: colour is device"]


def test_the_page_draws_at_most_6_rounds_and_states_the_number_of_saved_rounds(run):
    for number in range(4, 12):
        save(run, "mnist", number, features=X[:3], labels=Y[:3])
    assert "6 of 11 saved rounds" in sections.features_section(run, 10)


def test_many_devices_are_drawn_with_the_shape_of_their_domain():
    snapshots = [snapshot(X, Y, f"d{i}") for i in range(len(DOT_SHAPES))]
    assert PlotStyle.of(snapshots).group_kind == "device"
    more = [Snapshot(f"d{i}", 1, f"domain-{i % 2}", X, Y) for i in range(len(DOT_SHAPES) + 1)]
    style = PlotStyle.of(more)
    assert (style.group_kind, list(style.groups)) == ("domain", ["domain-0", "domain-1"])
    assert style.shape(style.group(more[0])) == style.shape(style.group(more[2]))


def test_the_number_of_drawn_classes_is_at_most_the_number_of_colours(tmp_path):
    x, y = features(52, classes=26, size=30)
    save(tmp_path, "a", 1, features=x, labels=y, received__anchors=2 * np.eye(26, 30))
    html = sections.features_section(tmp_path, 1)
    assert f"{len(COLOURS)} of 26 classes" in html
    assert sum("of class" in t for t in titles(drawn(html)[0])) == 2 * len(COLOURS)
    assert len(set(COLOURS)) == 10


def test_every_class_has_its_number_once_in_a_panel():
    style = PlotStyle.of([snapshot(X, Y)])
    class_points = ClassPoints(GLOBAL, np.eye(4), np.array([0, 1, 1, 2]), np.ones(4))
    layout = project_snapshots([snapshot(X, Y)], [class_points])
    assert [m.tag for m in style.class_marks(layout)] == ["0", "1", "", "2"]
    assert style.class_tags(layout) == []
    bare = project_snapshots([snapshot(*features(30))], [])
    assert sorted(words for _, words in style.class_tags(bare)) == ["0", "1", "2"]


def test_prototypes_of_class_0_are_drawn_with_their_samples_or_their_share(clusters):
    html = sections.class_section(clusters, 4)
    (picture,) = drawn(html)
    assert "class 0" in html and "prototypes: round 4; global prototypes: last evaluation." in html
    words = titles(picture)
    assert sum(t.startswith("local prototype of mnist") for t in words) == 2
    assert "local prototype of mnist: 1" in words and "local prototype of street: 4" in words
    assert "global prototype: 0.75" in words and "global prototype: 0.25" in words


def test_the_area_of_a_mark_is_proportional_to_its_size():
    found = snapshot(X, Y, "a")
    class_points = ClassPoints(LOCAL, X[:3], np.zeros(3, int), np.array([100.0, 25.0, 0.0]), "a")
    layout = project_snapshots([found], [class_points])
    large, quarter, none = PlotStyle.of([found]).sized_marks(layout, LOCAL, [found])
    assert large.size == pytest.approx(2 * quarter.size) and quarter.size > none.size > 0
    assert large.colour == COLOURS[0] and large.tag == "100"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [([0, 0, 1, 1, 1], 0), ([0, 1, 1, 2, 2, 2], 2), ([0, 1, 2], None), ([2, 2, 1, 1], 1), ([], None)],
)
def test_the_class_to_show_is_0_or_the_one_with_most_prototypes(labels, expected):
    class_points = [
        ClassPoints(LOCAL, np.zeros((len(labels), 2)), np.array(labels, int), np.ones(len(labels)))
    ]
    assert sections.class_to_show(class_points) == expected


def test_a_method_with_one_prototype_for_each_class_has_no_picture_of_prototypes(run):
    x, y = features()
    save(run, "mnist", 2, features=x, labels=y, sent__prototypes=x[:3], sent__labels=y[:3])
    assert sections.class_section(run, 2) == ""


# SVG


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_drawn_around_its_position(shape):
    path = outline(shape, 50.0, 70.0, 5.0)
    assert path.startswith("M") and path.endswith("z") and "nan" not in path
    if shape == "circle":
        (left, height), *arcs = ([float(v) for v in part.split()] for part in re.split("[Ma]", path[:-1])[1:])
        assert 40 < left < 50 and height == 70 and [arc[:2] for arc in arcs] == [[50 - left] * 2] * 2
        assert [arc[-2] for arc in arcs] == [2 * (50 - left), -2 * (50 - left)], "two half circles"
        return
    numbers = [float(v) for v in re.findall(r"-?\d+\.\d", path)]
    corners = np.cumsum(np.array(numbers).reshape(-1, 2), axis=0)
    assert len(corners) == len(SHAPES[shape])
    assert np.allclose(corners.mean(axis=0), [50, 70], atol=1.5) and np.ptp(corners, axis=0).max() <= 17


def test_a_panel_has_the_same_scale_in_both_directions_and_contains_all_its_points():
    square = PanelScale.around([(0, 0), (10, 0), (5, 2)], 100.0)
    positions = [square.position(p) for p in [(0, 0), (10, 0), (0, 10)]]
    assert positions[1][0] - positions[0][0] == pytest.approx(positions[0][1] - positions[2][1])
    assert all(0 < square.position(p)[0] < 100 for p in [(0, 0), (10, 0)])
    high = PanelScale.around([(0, 0), (1, 50)], 100.0)
    assert all(TITLE_HEIGHT < high.position(p)[1] < 100 + TITLE_HEIGHT for p in [(0, 0), (1, 50)])


@pytest.mark.parametrize("panels", range(7))
def test_all_text_is_inside_the_picture_for_any_number_of_panels(panels):
    dots = [Dots([(0, 0), (1, 1)], "#000", "cross", "<a>")]
    marks = [Mark((1, 1), "#000", "star", "b & c", tag="<1>")]
    names = [LegendEntry(f"a long name, number {i}", "#000", "bar") for i in range(20)]
    legend = [LegendEntry("what"), *names, LegendEntry("more")]
    html = scatter_plot([Panel(f"p{i}", dots, marks) for i in range(panels)], legend, "x")
    for picture in (*pictures_of(html), *pictures_of(html, "narrow")):
        *_, width, height = map(float, picture.get("viewBox").split())
        for node in picture.findall("{*}text"):
            assert float(node.get("x")) + 6 * len(node.text) < width + 20 and float(node.get("y")) < height
