"""The measured values of a device, true or false, affect that device only; and they are stored as JSON."""

import io
import json
import re
import signal
from pathlib import Path

import pytest
from rich.console import Console

from protofleet.cli.main import main
from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.round.policy import Policy
from protofleet.deploy.fleet.accuracy import AccuracyCheck
from protofleet.deploy.fleet.settings import RolloutSettings
from protofleet.lab.local.display.progress import ProgressDisplay
from tests.hostile.device import Answer
from tests.hostile.federation import Federation

BOTH = Policy(quorum=2, gather=2)
SERIES = re.compile(r'protofleet_accuracy_ratio\{domain="(.*)",split="(\w+)",view="(.*)"\}')


def measuring(accuracy, **more):
    """Return the work of an honest device that reports this accuracy and any further values."""

    def work(task):
        found = {"accuracy.test.global": accuracy, "loss.test.global": 1.0, "samples.test": 10, **more}
        return Answer(b"\x01\x00\x00\x00\x90" if task.phase == "evaluate" else task.body, metrics=found)

    return work


def shown(federation):
    """Return the accuracies that Prometheus shows, by domain and view."""
    found = ((SERIES.fullmatch(name), value) for name, value in federation.metrics().items())
    return {(m[1], m[3]): value for m, value in found if m and m[2] == "test"}


def heard_at(federation, name):
    """Return the time of the last message from a device, or 0.0 if there is none."""
    try:
        told = federation.metrics()
    except OSError:  # The coordinator does not serve its metrics yet.
        return 0.0
    return told.get(f'protofleet_device_last_seen_timestamp_seconds{{device="{name}"}}', 0.0)


def present(federation):
    return federation.metrics()["protofleet_devices_present"]


def joined(federation, name):
    """Wait until the first device takes part; its first message is heard before that."""
    federation.wait_until(lambda: heard_at(federation, name) and present(federation), f"{name} to take part")


def test_invented_view_names_of_a_device_do_not_displace_those_of_other_devices(tmp_path):
    invented = {f"accuracy.test.view-{i}": 0.1 for i in range(200)}
    with Federation(tmp_path, "honest", "liar", rounds=2, policy=BOTH) as f:
        coordinator = f.coordinator()
        f.raw("liar", measuring(0.1, **invented))
        honest = f.raw("honest", measuring(0.9))
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert {verdict for verdict, _ in honest.verdicts()} == {"accepted"}
        for line in f.rounds():
            assert line["accuracy"] == {"global": {"honest": 0.9, "liar": 0.1}}


def test_a_device_cannot_use_the_domain_of_another_device_or_a_second_domain(tmp_path):
    """Alerts and the check of a wave read a series that has only values of the honest device."""
    with Federation(tmp_path, "honest", "liar", rounds=100_000, policy=BOTH) as f:
        coordinator = f.coordinator()
        f.raw("honest", measuring(0.9), hello={"domain": "street"})
        joined(f, "honest")
        liar = f.raw("liar", measuring(0.0), hello={"domain": "street", "examples": 1_000_000})
        for i in range(30):
            liar.greet(domain=f"invented-{i}")
        f.wait_until(lambda: len(shown(f)) > 1, "two domains to be measured")
        judge = AccuracyCheck(
            RolloutSettings(
                accuracy_drop=0.05, metrics=f"http://127.0.0.1:{f.metrics_port}/metrics", soak_seconds=60.0
            )
        )
        judge.record_baseline()
        liar.greet(domain="street")
        assert judge.judge() == (True, "")
        assert shown(f) == {("street", "global"): 0.9, ("street (liar)", "global"): 0.0}
        said = "'street', which belongs to other devices, so its results are shown as 'street (liar)'"
        assert said in f.log_of(coordinator)
        assert f.log_of(coordinator).count("which belongs to other devices") == 1


def test_devices_that_the_settings_list_share_a_domain_in_any_order_of_hellos(tmp_path):
    limits = CoordinatorLimits(domains={"street": ("board-*",)})
    # With a straggler factor the last round, which has no quorum, would drop one of three after half a second.
    policy = Policy(quorum=3, gather=3, straggler_factor=0.0)
    with Federation(tmp_path, "board-1", "board-2", "liar", rounds=1, policy=policy, limits=limits) as f:
        coordinator = f.coordinator()
        f.raw("liar", measuring(0.0), hello={"domain": "street", "examples": 1_000_000})
        joined(f, "liar")
        for name, accuracy in (("board-1", 0.5), ("board-2", 0.75)):
            f.raw(name, measuring(accuracy), hello={"domain": "street"})
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        for line in f.rounds():
            assert line["accuracy"]["global"] == {"street": 0.625, "street (liar)": 0.0}


def test_a_domain_is_kept_when_the_coordinator_is_restarted(tmp_path):
    with Federation(tmp_path, "honest", "liar", rounds=2, policy=BOTH) as f:
        first = f.coordinator()
        answers = {"honest": measuring(0.9), "liar": lambda task: None}
        f.raw("honest", answers["honest"], hello={"domain": "street"})
        joined(f, "honest")
        liar = f.raw("liar", lambda task: answers["liar"](task), hello={"domain": "field"})
        liar.wait("task")
        first.kill()
        answers["liar"] = measuring(0.1)
        liar.hello_fields["domain"] = "street"
        second = f.coordinator()
        assert f.wait_for_end(second) == 0, f.last_words()
        assert f.rounds()[-1]["accuracy"]["global"] == {"street": 0.9, "field": 0.1}


def test_no_file_has_a_value_that_is_not_finite_also_after_a_kill_of_the_coordinator(tmp_path, capsys):
    odd = {
        "accuracy.test.global": float("inf"),
        "loss.test.global": float("-inf"),
        "samples.test": float("nan"),
    }
    with Federation(tmp_path, "late", "odd", rounds=2, policy=BOTH) as f:
        first, answers = f.coordinator(), {"late": lambda task: None}
        strange = f.raw("odd", measuring(0.5, **odd))
        late = f.raw("late", lambda task: answers["late"](task))
        strange.wait("receipt")
        first.kill()
        answers["late"] = measuring(0.9)
        second = f.coordinator()
        assert f.wait_for_end(second) == 0, f.last_words()
        assert late.verdicts() and {verdict for verdict, _ in strange.verdicts()} == {"accepted"}
        assert [line["round"] for line in f.rounds()] == [1, 2, 3] and f.rounds()[0]["resumed"]
        assert all(line["accuracy"] == {"global": {"late": 0.9}} for line in f.rounds())
        for file in ("rounds.jsonl", "rounds.copy.jsonl"):
            for line in (f.run / file).read_text().splitlines():
                json.loads(line, parse_constant=lambda word: 1 / 0)
        assert main(["report", str(f.run)]) == 0
        assert "90.0%" in capsys.readouterr().out


DIVERGES = """
from protofleet.edge_client import evaluate
measure = evaluate.measure
evaluate.measure = lambda *given: (measure(*given)[0], {loss})
"""


@pytest.mark.parametrize("loss", [4.109220100685203e30, 2.0**63, 1e300, -(2.0**70), 12345678901.0])
def test_a_device_whose_loss_is_huge_takes_part_and_its_loss_is_left_out(tmp_path, loss):
    with Federation(tmp_path, "one", rounds=1) as f:
        coordinator, device = f.coordinator(), f.device("one", planted=DIVERGES.format(loss=loss))
        assert f.wait_for_end(coordinator) == f.wait_for_end(device) == 0, f.last_words()
        shown = f.rounds()[-1]
        assert len(shown["accuracy"]["global"]) == 1 and not shown["dropped"]
        assert [*shown["loss"].get("global", {}).values()] == ([loss] if abs(loss) < 1e12 else [])


def test_a_repeated_hello_is_accepted_and_causes_no_event(tmp_path):
    with Federation(tmp_path, "restless", rounds=1, policy=Policy(quorum=2)) as f:
        coordinator = f.coordinator()
        restless = f.raw("restless", again=600.0)
        joined(f, "restless")
        for _ in range(30):
            restless.greet()
        for _ in range(2):
            restless.say("bye", {"reason": "moved"})
        f.wait_until(lambda: f.events("left"), "the device to leave")
        restless.greet()
        f.wait_until(lambda: len(f.events("joined")) == 2, "the device to join again")
        coordinator.say(signal.SIGTERM)
        f.wait_for_end(coordinator)
        said = [event["event"] for event in f.events() if event.get("device") == "restless"]
        assert said == ["joined", "left", "joined"]


def test_a_domain_that_looks_like_markup_is_shown_unchanged(tmp_path):
    with Federation(tmp_path, "one", rounds=1) as f:
        coordinator = f.coordinator()
        f.raw("one", measuring(0.5), hello={"domain": "[/x] :smile:"})
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        screen = io.StringIO()
        with ProgressDisplay(1, Console(file=screen, force_terminal=True, width=100)) as progress:
            for record in f.rounds():
                progress.handle_line(json.dumps({"event": "round", **record}))
        assert "[/x] :smile:" in screen.getvalue() and "50.0%" in screen.getvalue()
        assert main(["report", str(f.run)]) == 0
        assert "[/x] :smile:" in Path(f.run / "report.html").read_text()
