"""The alerts of one run of a queue are raised only for that run, while the other run continues with the same devices.

The processes and Prometheus are real, and the samples are stretched as in test_alert_stories.
"""

from __future__ import annotations

import shutil
from itertools import count

import pytest

from protofleet.cli.main import main
from protofleet.federation.brokers.ports import free_port
from tests.hostile.federation import Federation
from tests.hostile.test_run_queue import EXPERIMENT
from tests.tools.monitoring.prometheus import PROGRAM, Prometheus
from tests.tools.monitoring.rule_tests import PROMTOOL
from tests.tools.monitoring.stories import SECONDS, metric_of, stage, which_fire

pytestmark = [
    pytest.mark.slow,
    pytest.mark.broker,
    pytest.mark.skipif(
        not (PROMTOOL and PROGRAM), reason="no Prometheus here; make container-tools installs it"
    ),
]
DEVICES, GROUP = ("one", "two"), '[select]\ngroups = ["hall"]\n'
LONG = EXPERIMENT.replace("rounds = 2", "rounds = 9000").replace("[policy]", "[policy]\npause_seconds = 0.1")


# The last round of a run without progress would be stretched too; a hello in it repeats a task and its answer.
USUAL_BYTES = {"protofleet_round_wire_bytes": lambda minute: 80_000.0}

# The times of the round and of the last message of each device; they change while a run makes progress.
MOVING = ("protofleet_round_since_timestamp_seconds", "protofleet_device_last_seen_timestamp_seconds")


def going_on(seen, runs):
    """Return a stage in which these runs make progress, all devices send messages and all answers get receipts.

    On a busy machine a round may be longer than a stage, so each further try is longer.
    """
    found, lengths = {}, (SECONDS * 1.5**number for number in count())

    def goes_on():
        found.clear()
        found.update(stage(seen, next(lengths)))
        times = [
            found[name]
            for name in found
            if metric_of(name) in MOVING and any(f'run="{run}"' in name for run in runs)
        ]
        outboxes = [
            values for name, values in found.items() if metric_of(name) == "protofleet_device_outbox_answers"
        ]
        is_empty = all(min(value for _, value in values) == 0 for values in outboxes)
        moves = [values[0][1] < values[-1][1] for values in times]
        return is_empty and len(moves) == len(runs) * (1 + len(DEVICES)) and all(moves)

    seen.wait_until(goes_on, f"a stage in which {', '.join(runs)} go on")
    return dict(found)


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stories")
    with Federation(folder / "f", *DEVICES) as f:
        f.service()
        runs = f.folder / "runs"
        f.wait_until(f.answers, "the service")
        for number, name in enumerate(("red", "blue")):
            file = f.folder / f"{name}.toml"
            file.write_text(LONG.replace("seed = 1", f"seed = {number}") + (GROUP if name == "blue" else ""))
        for device in DEVICES:
            assert main(["label", device, "--group", "hall", "--service", str(runs)]) == 0
        for name in ("red", "blue"):
            assert (
                main(["submit", str(f.folder / f"{name}.toml"), "--name", name, "--service", str(runs)]) == 0
            )
        ports = {name: free_port() for name in DEVICES}
        with Prometheus(folder / "prometheus", f.metrics_port, ports) as seen:
            for name, port in ports.items():
                f.device(name, metrics_port=port, stays=True)
            seen.wait_for("count(protofleet_round > 2) == 2")
            found = {"both go on": going_on(seen, ("red", "blue"))}
            # The group that blue selects is too small now.
            assert main(["label", "two", "--group", "yard", "--service", str(runs)]) == 0
            seen.wait_for('protofleet_devices_present{run="blue"} == 1')
            found["blue lacks a device"] = going_on(seen, ("red",))
            assert main(["label", "two", "--group", "hall", "--service", str(runs)]) == 0
            seen.wait_for('protofleet_devices_present{run="blue"} == 2')
            found["both go on again"] = going_on(seen, ("red", "blue"))
            shutil.move(runs / "blue", folder / "elsewhere")
            seen.wait_for('protofleet_run_over{how="failed", run="blue"} == 1')
            found["blue cannot go on"] = going_on(seen, ("red",))
        yield found


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["both go on", "both go on again"], set()),
        (["both go on", "blue lacks a device"], {("QuorumLost", "blue")}),
        (["both go on again", "blue cannot go on"], {("RunFailed", "blue")}),
    ],
    ids=["nothing", "a run lacks devices", "a run cannot go on"],
)
def test_an_alert_of_a_run_is_raised_only_for_that_run(stages, tmp_path, names, expected):
    story = [(stages[name], 30) for name in names]
    # Alerts of no run belong to the machine, such as BrokerDropping on a busy one.
    of_runs = {(alert, run) for alert, run in which_fire(tmp_path, story, USUAL_BYTES) if run}
    assert of_runs == expected
