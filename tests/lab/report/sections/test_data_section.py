"""The report shows the data that devices learn from as bubbles, as a table, and as one number."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET

import pytest

from protofleet.cli.main import main
from protofleet.lab.report.data_bubbles import bubbles
from protofleet.lab.report.data_counts import DeviceCounts, FleetCounts
from protofleet.lab.report.finished_run import FinishedRun
from protofleet.lab.report.known_data import known_counts
from protofleet.lab.report.sections.data import data_section, run_section
from tests.support.small_experiment import TWO

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SVG = "{http://www.w3.org/2000/svg}"


def fleet(*rows, names=()):
    return FleetCounts.of([DeviceCounts(f"d{i}", "", row) for i, row in enumerate(rows)], names)


def total_variation(rows):
    """Compute the mean total variation by hand, from the larger of the sums of too large and too small shares."""
    everything = [sum(column) for column in zip(*rows)]
    distances = []
    for row in rows:
        shares = [(n / sum(row), m / sum(everything)) for n, m in zip(row, everything)]
        distances.append(max(sum(p - q for p, q in shares if p > q), sum(q - p for p, q in shares if q > p)))
    return sum(distances) / len(distances)


@pytest.mark.parametrize("rows", [[(8, 2), (1, 9)], [(5, 0, 7), (0, 3, 3), (400, 1, 0)], [(1, 2), (10, 20)]])
def test_the_skew_is_the_mean_total_variation_between_a_device_and_all_devices(rows):
    found = fleet(*rows)
    assert found.skew == pytest.approx(total_variation(rows))
    assert 0 <= found.skew <= found.most_skew + 1e-12


def test_the_skew_is_0_for_equal_shares_and_largest_if_no_two_devices_share_a_class():
    assert fleet((10, 20), (1, 2), (0, 0)).skew == pytest.approx(0)
    apart = fleet((9, 0, 0), (0, 9, 0), (0, 0, 500))
    assert apart.skew == pytest.approx(2 / 3) and apart.most_skew == pytest.approx(2 / 3)
    assert fleet((0, 0)).skew == 0 and FleetCounts.of([]).skew == 0


def test_the_section_shows_no_skew_for_one_device():
    alone = fleet((9, 3), names=("cat", "dog"))
    page = data_section(alone)
    assert "Skew of classes: one device: nothing to compare</b></p>" in page
    assert "training samples of 2 classes on 1 device" in page and "skew 0.00" not in page


def circles(picture):
    return list(ET.fromstring(picture).iter(f"{SVG}circle"))


def test_the_area_of_a_bubble_is_proportional_to_the_number_of_images():
    found = circles(bubbles(fleet((100, 25, 0), (4, 0, 400))))
    sizes = {c.find(f"{SVG}title").text: float(c.get("r")) for c in found}
    assert len(sizes) == 4, "there is no bubble for a class without images"
    largest = sizes["d1, class 2: 400"]
    assert sizes["d0, class 0: 100"] == pytest.approx(largest / 2, abs=0.1)
    assert sizes["d0, class 1: 25"] == pytest.approx(largest / 4, abs=0.1)


@pytest.mark.parametrize(("devices", "classes"), [(1, 2), (6, 10), (70, 20), (1000, 200), (10_000, 2)])
def test_all_bubbles_are_inside_the_picture_and_its_height_is_limited(devices, classes):
    counts = fleet(*([tuple(i * j % 7 for i in range(classes)) for j in range(1, devices + 1)]))
    root = ET.fromstring(bubbles(counts))
    _, _, width, height = map(float, root.get("viewBox").split())
    assert width == 336 and height < 1800
    for circle in root.iter(f"{SVG}circle"):
        x, y, r = (float(circle.get(key)) for key in ("cx", "cy", "r"))
        assert x - r > 98 and x + r < width - 40 and y - r > 0 and y + r < height
    shown = sum(
        int(c.find(f"{SVG}title").text.rsplit(": ")[1].replace(",", "")) for c in root.iter(f"{SVG}circle")
    )
    assert shown == sum(one.total for one in counts.devices), (
        "no image is left out where devices share a bubble"
    )
    assert data_section(counts).count("<tr>") <= 1 + max(60, 20_000 // classes)


def test_the_table_below_the_picture_has_every_number_and_the_names_of_rows_and_columns():
    text = data_section(fleet((3, 0), (1, 2), names=("cat <", "dog")))
    assert "<details><summary>" in text and "<caption" in text
    assert re.findall(r'<th scope="col">(.*?)</th>', text) == ["device", "domain", "cat &lt;", "dog", "all"]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', text)
    cells = {name: re.findall("<td>(.*?)</td>", rest)[1:] for name, rest in rows}
    assert cells == {"d0": ["3", "0", "3"], "d1": ["1", "2", "3"]}
    assert "at most 0.50" in text


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_bubbles_have_enough_contrast_to_the_background_of_the_picture(tmp_path, capsys):
    path = tmp_path / "two.toml"
    path.write_text(TWO)
    assert main(["data", str(path), "--picture", str(tmp_path / "two.svg")]) == 0
    text = (tmp_path / "two.svg").read_text()
    assert f"picture: {tmp_path / 'two.svg'}" in capsys.readouterr().out
    fill = circles(text)[0].get("fill")
    day, night = text.split("@media")
    for style, ground in ((day, "#ffffff"), (night, "#12181e")):
        letters = re.findall(r"(?:text|title)\{[^}]*fill:(#\w{6})", style)
        assert len(letters) == 2 and all(contrast(colour, ground) >= 4.5 for colour in letters)
        assert contrast(fill, ground) >= 3


def test_the_option_picture_writes_a_page_into_the_folder_of_the_settings_by_default(tmp_path, capsys):
    path = tmp_path / "two.toml"
    path.write_text(TWO)
    assert main(["data", str(path), "--json", "--picture"]) == 0
    said = json.loads(capsys.readouterr().out)
    page = (tmp_path / "two-data.html").read_text()
    rows = re.findall(r'<th scope="row">optdigits-\d</th><td>optdigits</td>(.*?)</tr>', page)
    drawn = [[int(n) for n in re.findall(r"<td>(\d+)</td>", row)][:-1] for row in rows]
    assert drawn == [one["per_class"] for one in said["data"]]
    assert said["picture"] == str(tmp_path / "two-data.html") and 0 < said["skew"] < 1


MEASURE = """<script>addEventListener("load", () => {
  document.querySelector("details").open = true
  const picture = document.querySelector("svg"), scale = picture.getBoundingClientRect().width / 336
  const sizes = [...picture.querySelectorAll("text")].map(t => parseFloat(getComputedStyle(t).fontSize) * scale)
  const last = Math.max(...[...picture.children].map(e => e.getBoundingClientRect().right))
  document.title = JSON.stringify([Math.min(...sizes), last, document.documentElement.scrollWidth, innerWidth])
})</script>"""
FRAME = """<iframe src="two-data.html" width="400" height="900" style="border:0"></iframe><script>
setInterval(() => { document.title = document.querySelector("iframe").contentDocument.title }, 50)</script>"""


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_the_page_has_readable_text_and_no_overflow_on_the_screen_of_a_phone(tmp_path):
    (tmp_path / "two.toml").write_text(TWO)
    assert main(["data", str(tmp_path / "two.toml"), "--picture"]) == 0
    page = tmp_path / "two-data.html"
    page.write_text(page.read_text().replace("</body>", f"{MEASURE}</body>"))
    (tmp_path / "frame.html").write_text(FRAME)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    options += [f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=3000", "--dump-dom"]
    shown = subprocess.run(
        [CHROMIUM, *options, f"file://{tmp_path}/frame.html"], capture_output=True, text=True, timeout=100
    )
    smallest, right, wide, there = json.loads(re.search(r"<title>(\[.*?\])</title>", shown.stdout)[1])
    assert smallest >= 12 and right <= there and wide <= there == 400


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["FILE", "--picture", "x.pdf"], "--picture is 'x.pdf', it must end in .html", 2),
        (["--picture", "FILE"], "write the settings files before --picture", 2),
        (["FILE", "--picture", "FILE/x.svg"], "x.svg cannot be written: ", 1),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_in_one_line(tmp_path, capsys, words, said, code):
    path = tmp_path / "two.toml"
    path.write_text(TWO)
    assert main(["data", *(word.replace("FILE", str(path)) for word in words)]) == code
    err = capsys.readouterr().err
    assert said in err and len(err.splitlines()) == 1


def test_the_report_of_a_run_without_device_folders_states_that_the_data_are_not_known(tmp_path):
    text = run_section(FinishedRun(tmp_path, [], {}))
    assert "not known here" in text and "<svg" not in text


def test_a_device_with_a_damaged_file_is_counted_as_unknown(tmp_path):
    good = {"domain": "a", "counts": [1, 2], "names": ["x", "y"]}
    files = [
        json.dumps(good), "{", "[]", '{"domain": "a"}', "[" * 5000,
        json.dumps({**good, "counts": [-1, 2]}), json.dumps({**good, "counts": [1.5]}),
    ]  # fmt: skip
    for i, text in enumerate(files):
        (tmp_path / "devices" / f"d{i}").mkdir(parents=True)
        (tmp_path / "devices" / f"d{i}" / "data.json").write_text(text)
    found, unknown = known_counts(tmp_path)
    assert [one.device for one in found.devices] == ["d0"] and unknown == len(files) - 1
    assert "Nothing is known here of 6 more" in run_section(FinishedRun(tmp_path, [], {}))
