"""A tracker gets the right numbers of a run at the right time, and cannot harm the run."""

import json
import threading
from pathlib import Path

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.observe.rounds_file import sealed_line
from protofleet.lab.report.flat_names import part, round_numbers, summary_numbers
from protofleet.lab.trackers import destinations
from protofleet.lab.trackers.destinations import Destination, Kind, destination
from protofleet.lab.trackers.following import follow, tracking
from protofleet.lab.trackers.rounds_tail import RoundsTail
from protofleet.lab.trackers.run_folder import ending_of, settings_of
from protofleet.lab.trackers.tracked_file import TrackedFile
from protofleet.lab.trackers.tracker import Begun
from protofleet.protocol.settings.reader import SettingsError
from tests.lab.report.finished import whole_line, whole_run

WHOLE = 4  # rounds; the last evaluation is one more line


class Recorder:
    """A tracker that keeps what it gets, and fails at the round `fails_at`."""

    def __init__(self, fails_at=0):
        self.began, self.rounds, self.ending, self.fails_at = [], {}, None, fails_at
        self.closed, self.taken = 0, threading.Condition()

    def begin(self, run):
        self.began.append(run)
        return Begun("its name", run.next_round)

    def write(self, rounds):
        for number, numbers in rounds:
            if number == self.fails_at:
                raise ConnectionError("the server is away\nand more of it")
            assert number not in self.rounds, "a round came twice"
            with self.taken:
                self.rounds[number] = numbers
                self.taken.notify_all()

    def end(self, ending):
        self.ending = ending

    def close(self):
        self.closed += 1


@pytest.fixture
def recorder(monkeypatch):
    found = Recorder()
    kinds = {**destinations.KINDS, "recorder": Kind("json", lambda place, run: found)}
    monkeypatch.setattr(destinations, "KINDS", kinds)
    return found


@pytest.fixture
def run(tmp_path):
    (tmp_path / "demo").mkdir()
    return tmp_path / "demo"


def write_lines(run, numbers):
    with (run / "rounds.jsonl").open("a") as file:
        file.writelines(sealed_line(whole_line(number, WHOLE)) for number in numbers)


TO = Destination("recorder")


def test_a_finished_run_is_sent_completely_and_only_once(run, recorder):
    whole_run(run, WHOLE)
    assert follow(TO, run, to_the_end=False).result == "rounds 1 to 5 are in recorder"
    assert list(recorder.rounds) == [1, 2, 3, 4, 5] and recorder.closed == 1
    assert recorder.ending.state == "finished"
    assert [path.name for path in recorder.ending.files] == ["rounds.jsonl", "summary.json"]
    assert recorder.ending.numbers["total/payload/up/sum"] == 4000
    assert follow(TO, run, to_the_end=False).result == "rounds 1 to 5 are in recorder"
    assert len(recorder.began) == 1


def test_a_follower_continues_at_the_first_round_that_was_not_sent(run, recorder):
    write_lines(run, [1, 2])
    with (run / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "torn')
    assert "the run is not over" in follow(TO, run, to_the_end=False).result
    assert recorder.ending is None, "the run has not ended"
    whole_run(run, WHOLE)
    follow(TO, run, to_the_end=False)
    assert list(recorder.rounds) == [1, 2, 3, 4, 5]
    assert [(one.known_as, one.next_round) for one in recorder.began] == [("", 1), ("its name", 3)]


def test_a_run_restored_from_an_older_copy_is_sent_again_from_there(run, recorder):
    write_lines(run, [1, 2, 3])
    follow(TO, run, to_the_end=False)
    (run / "rounds.jsonl").unlink()
    write_lines(run, [1])
    recorder.rounds.clear()
    follow(TO, run, to_the_end=False)
    write_lines(run, [2])
    follow(TO, run, to_the_end=False)
    assert list(recorder.rounds) == [2]


def test_each_round_is_sent_when_it_ends_and_a_stopped_run_has_the_state_stopped(run, recorder):
    with tracking([TO], run):
        for number in (1, 2):
            write_lines(run, [number])
            with recorder.taken:
                assert recorder.taken.wait_for(lambda: number in recorder.rounds, 30)
        write_lines(run, [3])
    assert list(recorder.rounds) == [1, 2, 3] and recorder.ending.state == "stopped"
    assert TrackedFile(run).of("recorder").next_round == 4 and not TrackedFile(run).of("recorder").ended


def test_a_tracker_error_is_reported_in_one_line_and_other_trackers_continue(run, recorder, monkeypatch):
    broken = Recorder(fails_at=2)
    kinds = {**destinations.KINDS, "broken": Kind("json", lambda place, folder: broken)}
    monkeypatch.setattr(destinations, "KINDS", kinds)
    whole_run(run, WHOLE)
    said = []
    with tracking([Destination("broken"), TO], run, said.append):
        pass
    assert list(recorder.rounds) == [1, 2, 3, 4, 5] and broken.closed == 1
    (line,) = said
    assert "\n" not in line and line.startswith(
        "broken is left out from round 1 on (ConnectionError: the server"
    )
    assert f"protofleet track {run} --to broken" in line


@pytest.mark.parametrize("error", [KeyboardInterrupt("mine"), SystemExit(3), RecursionError("deep")])
def test_any_exception_of_a_tracker_is_reported_in_one_line(run, recorder, monkeypatch, error):
    def fail(start=None):
        raise error if start else ValueError("cannot be closed")

    monkeypatch.setattr(recorder, "begin", fail)
    monkeypatch.setattr(recorder, "close", fail)
    whole_run(run, WHOLE)
    said = []
    with tracking([TO], run, said.append):
        pass
    (line,) = said
    assert f"({type(error).__name__}: {error})" in line


def test_an_error_that_contains_an_address_is_printed_without_the_password(run, recorder, monkeypatch):
    def fail(start):
        raise ConnectionError("no answer from http://me:pw@host:5000/api and sqlite:///a@b")

    monkeypatch.setattr(recorder, "begin", fail)
    said = []
    with tracking([TO], run, said.append):
        pass
    assert (
        "pw" not in said[0]
        and "(ConnectionError: no answer from http://host:5000/api and sqlite:///a@b)" in said[0]
    )


def test_two_commands_cannot_send_one_run_to_one_tracker_at_once(run, recorder):
    write_lines(run, [1])
    said = []
    with TrackedFile(run).sole_use("recorder"):
        assert follow(TO, run, said.append, to_the_end=False).failed
    assert (
        said == [f"recorder is skipped here, because another command sends {run} there now"]
        and not recorder.began
    )
    assert not follow(TO, run, said.append, to_the_end=False).failed
    assert list(recorder.rounds) == [1]


def test_a_run_does_not_wait_for_a_tracker_that_hangs(run, recorder, monkeypatch):
    hangs = threading.Event()
    monkeypatch.setattr("protofleet.lab.trackers.following.PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(recorder, "begin", lambda start: hangs.wait(60))
    whole_run(run, WHOLE)
    said = []
    with tracking([TO], run, said.append):
        pass
    hangs.set()
    assert "has not taken round 1" in said[0]


def test_each_line_is_read_once_and_a_replaced_file_is_read_from_its_start(run, monkeypatch):
    monkeypatch.setattr("protofleet.lab.trackers.rounds_tail.MOST_BYTES", 700)  # less than a whole line
    tail = RoundsTail(run / "rounds.jsonl", 2)
    assert tail.more() == []
    write_lines(run, [1, 2, 3])
    found = []
    while more := tail.more():
        found += more
    assert [line["round"] for line in found] == [2, 3]
    other = run / "other"
    first = {**whole_line(1, WHOLE), "phases": []}  # so that all later lines begin at other bytes
    again = [first, *(whole_line(number, WHOLE) for number in (2, 3, 4))]
    other.write_text("".join(map(sealed_line, again)))
    other.replace(run / "rounds.jsonl")
    assert [line["round"] for line in tail.more()] == [4]


def test_a_damaged_tracked_file_is_treated_as_missing(run, recorder):
    write_lines(run, [1])
    for text in ("{", "[]", '{"recorder": 1}', '{"recorder": {"next_round": "x"}}'):
        (run / "tracked.json").write_text(text)
        assert TrackedFile(run).of("recorder").next_round == 1
    follow(TO, run, to_the_end=False)
    assert json.loads((run / "tracked.json").read_text())["recorder"]["next_round"] == 2


def test_the_numbers_of_a_round_have_flat_names_and_include_means_and_sums():
    line = whole_line(2, WHOLE)
    found = round_numbers(line)
    by_domain = line["accuracy"]["global"]
    assert {name: found[f"accuracy/global/{name}"] for name in by_domain} == by_domain
    assert found["accuracy/global/mean"] == sum(by_domain.values()) / 2
    assert found["wire/up/sum"] == sum(line["wire"]["up"].values()) == 1090
    assert found["late"] == 0 and found["dropped"] == 1 and found["figures/margin.0"] == 1.2
    line["energy"] = {"a": {"train": 2.0, "send": 0.5}, "b": {"train": 3.0}}
    assert {k: v for k, v in round_numbers(line).items() if "joules" in k} == {
        "joules/train": 5.0, "joules/send": 0.5,
    }  # fmt: skip
    assert round_numbers({"round": 1})["seconds"] == 0, "earlier versions wrote fewer keys"


@pytest.mark.parametrize(("text", "name"), [
    ("street", "street"), ("a/b c:d", "a_b_c_d"), ("..", "__"), ("", "_"), ("größe", "größe"),
])  # fmt: skip
def test_special_characters_in_a_name_become_underscores(text, name):
    assert part(text) == name


def test_the_summary_numbers_have_totals_and_the_last_and_best_accuracies(run):
    whole_run(run, WHOLE)
    found = summary_numbers(json.loads((run / "summary.json").read_text()))
    assert found["total/wire/down/sum"] == 2000 + 80 + 240 and found["total/seconds"] == 10.0
    assert found["final/accuracy/personal/mean"] == found["best/accuracy/global/street"] == 0.9
    assert not any("point" in name for name in found)


def test_no_tracker_gets_the_user_name_and_the_password_of_the_broker(run):
    whole_run(run, WHOLE)
    address = '[broker.address]\nhost = "h"\nusername = "me"\npassword = "pw"\n'
    (run / "experiment.toml").write_text(f'name = "demo"\n[broker]\nkind = "external"\n{address}')
    told = [settings_of(run), ending_of(run).settings, ending_of(run).texts]
    assert settings_of(run) == {"name": "demo", "broker.kind": "external", "broker.address.host": "h"}
    assert "pw" not in str(told) and '"me"' not in str(told)
    assert str(Destination("mlflow", "https://me:pw@host/x")) == "mlflow=https://host/x"


def test_the_settings_of_a_run_without_an_experiment_are_sent_at_its_end(run):
    whole_run(run, WHOLE)
    (run / "experiment.toml").unlink()
    assert settings_of(run) == {}
    assert ending_of(run).settings == {
        "method.name": "fedlsa", "network.name": "cnn23", "rounds": "4", "seed": "1",
    }  # fmt: skip


@pytest.mark.parametrize(("text", "words"), [
    ("tensorbord", "did you mean tensorboard? there are mlflow, tensorboard"),
    ("mlflow=", "has nothing after ="),
    ("mlflow=localhost:5000", "write mlflow=http://HOST:PORT for a server, or mlflow=sqlite:///FILE for a database"),
])  # fmt: skip
def test_a_wrong_tracker_is_refused_with_the_reason(text, words):
    with pytest.raises(SettingsError) as error:
        destination(text)
    assert words in str(error.value)


@pytest.mark.parametrize("words", [["run", "x.toml", "--track"], ["track", ".", "--to"]])
def test_a_tracker_without_its_package_is_refused_before_the_run_starts(words, monkeypatch, capsys):
    away = {name: Kind("a_package_that_is_away", kind.open) for name, kind in destinations.KINDS.items()}
    monkeypatch.setattr(destinations, "KINDS", away)
    for name in away:
        assert main([*words, name]) == 2
        said = capsys.readouterr().err.strip()
        assert said == (
            f"protofleet: tracking with {name} needs the package a_package_that_is_away: pip install {name}"
        )


def test_track_refuses_a_folder_without_a_run_and_two_places_of_one_tracker(tmp_path, capsys):
    assert main(["track", str(tmp_path / "nothing"), "--to", "tensorboard"]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main(["track", str(tmp_path), "--to", "tensorboard"]) == 2
    assert "no round has ended there" in capsys.readouterr().err
    both = ["track", str(tmp_path), "--to", "tensorboard", "--to", "tensorboard=x", "--follow"]
    assert main(both) == 2 and "one run to one tracker" in capsys.readouterr().err
    assert not list(Path(tmp_path).iterdir())
