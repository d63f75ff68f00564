"""Tests of profiles files: what they may contain, and how each mistake is refused."""

import pytest

from protofleet.lab.virtual.profiles import read_profiles
from protofleet.lab.virtual.trace import read_trace
from protofleet.protocol.settings.reader import SettingsError
from tests.lab.virtual.small import PROFILES, profiles

BOARD = "[boards.pi]\nshare = 1\nstep_seconds = 0.1\n"
LINE = "[lines.lte]\nshare = 1\nup = 8\ndown = 8\n"
PAGE = """# TYPE protofleet_device_answers_total counter
protofleet_device_answers_total 4.0
# TYPE protofleet_device_work_seconds_total counter
protofleet_device_work_seconds_total 10.0
"""


def test_a_profiles_file_contains_boards_lines_and_availability(tmp_path):
    found = profiles(tmp_path, f'{PROFILES}[availability]\ndays = "22:00-06:00"\n').profiles
    assert found.boards["pi"].step_seconds == 0.1
    assert (found.lines["lte"].up, found.lines["lte"].price) == (8, 2)
    assert found.availability.days == "22:00-06:00"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOARD.replace("= 1", "= 0.7") + LINE, r"boards\.\*\.share: .* sum to 0\.7 \(pi 0\.7\), .* sum to 1"),
        (BOARD + LINE.replace("share = 1", "share = 0.5"), r"lines\.\*\.share: the shares sum to 0\.5"),
        (BOARD + LINE.replace("up = 8", "up = 0"), r"lines\.lte\.up is 0.0, it must be at least 1e-06"),
        (BOARD + LINE.replace("down = 8", "down = 0.0"), r"lines\.lte\.down is 0"),
        (BOARD.replace("step_seconds = 0.1", "") + LINE, r"boards\.pi: .*step_seconds .*neither is given"),
        (BOARD + 'from = "metrics"\n' + LINE, r"boards\.pi: .*both are given"),
        (BOARD.replace("step_seconds = 0.1", 'from = "guess"') + LINE, r'boards\.pi\.from is "guess"'),
        (BOARD.replace("step_seconds = 0.1", 'from = "metrics"') + LINE, r"boards\.pi\.metrics .*--validate RUN"),
        (BOARD + "metrics = 'a'\n" + LINE, r"boards\.pi: metrics names a file, but from is not"),
        (BOARD + LINE + "[availability]\ndays = '08:00-08:00'\n", r"availability.*never be available"),
        (BOARD + LINE + "[availability]\ndays = 'night'\n", r"availability.*days is .night"),
        (BOARD + LINE + "[availability]\ndays = '08:00-09:00'\ntrace = 'a'\n", r"availability.*both given"),
        (BOARD + LINE + "[availability]\ntrace = 'none.csv'\n", r"availability\.trace: .*none\.csv cannot be read"),
        ("begins = '25:00'\n" + BOARD + LINE, r"begins is .25:00"),
        (BOARD, r"lines"),
        (BOARD + LINE + "speed = 3\n", r"speed"),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_with_its_key(tmp_path, text, words):
    with pytest.raises(SettingsError, match=words) as found:
        profiles(tmp_path, text)
    assert str(found.value).startswith(str(tmp_path / "boards.toml"))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n", "the first line of .* must be device,from,until"),
        ("device,from,until\n", "would never be available"),
        ("device,from,until\nd1,0,10\nd1,ten,20\n", "line 3 of .*d1,ten,20"),
        ("device,from,until\nd1,10,10\n", "line 2 of"),
        ("device,from,until\nd1,0,inf\n", "line 2 of"),
        ("device,from,until\nd1,0\n", "line 2 of"),
        ("device,from,until\n,0,5\n", "line 2 of"),
        (b"\xff\xfe\x00", "is not a CSV file"),
    ],
)
def test_an_invalid_trace_is_refused_with_the_number_of_its_line(tmp_path, text, words):
    path = tmp_path / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError, match=words) as found:
        read_trace(path)
    assert str(found.value).startswith("availability.trace: ")


def test_the_intervals_of_a_trace_are_sorted_and_joined(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("device,from,until\nb,50,60\na,0,10\nb,10,30\nb,20,50\nb,70,80\n")
    assert read_trace(path).intervals == {"b": [(10, 60), (70, 80)], "a": [(0, 10)]}


def test_measured_seconds_come_from_a_metrics_page(tmp_path):
    (tmp_path / "pi.prom").write_text(PAGE)
    board = BOARD.replace("step_seconds = 0.1", 'from = "metrics"\nmetrics = "pi.prom"')
    work = profiles(tmp_path, board + LINE).work["pi"]
    assert (work.training, work.evaluation) == (2.5, 2.5)


@pytest.mark.parametrize("text", ["", "no metrics {", PAGE.replace("4.0", "0.0")])
def test_a_metrics_page_without_updates_is_refused(tmp_path, text):
    (tmp_path / "pi.prom").write_text(text)
    board = BOARD.replace("step_seconds = 0.1", 'from = "metrics"\nmetrics = "pi.prom"')
    with pytest.raises(SettingsError, match=r"boards\.pi\.metrics: .*pi\.prom"):
        profiles(tmp_path, board + LINE)


def test_profiles_with_different_contents_have_different_digests(tmp_path):
    (tmp_path / "trace.csv").write_text("device,from,until\na,0,10\n")
    text = f"{PROFILES}[availability]\ntrace = 'trace.csv'\n"
    first, again = profiles(tmp_path, text), profiles(tmp_path, text)
    (tmp_path / "trace.csv").write_text("device,from,until\na,0,11\n")
    assert first.digest == again.digest
    assert len({first.digest, read_profiles(tmp_path / "boards.toml").digest, profiles(tmp_path).digest}) == 3
