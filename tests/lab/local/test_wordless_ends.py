"""The code of a plug-in can end a process without a message and with exit code 0, as if it had finished."""

import pytest

from tests.lab.local.test_run import lines, place, protofleet

__all__ = ["place"]  # a fixture
HALVES = """
import os
from dataclasses import replace
from protofleet.methods import fedavg

class Client(fedavg.Client):
    def run(self, ask):
        if self.device == WHO:
            os._exit(0)
        return super().run(ask)

class Server(fedavg.Server):
    def round(self):
        yield from super().round()
        if WHO == "coordinator":
            os._exit(0)

METHOD = replace(fedavg.METHOD, Client=Client, Server=Server)
"""
SAID = "its process ended with exit code 0 and said nothing of why; {} has what it did until then"


def run(place, who, *arguments):
    (place / "leaves.py").write_text(f"WHO = {who!r}\n{HALVES}")
    text = (place / "small.toml").read_text().replace('name = "fedavg"', 'file = "leaves.py"')
    (place / "small.toml").write_text(text)
    return protofleet("run", "small.toml", *arguments, cwd=place, timeout=100)


def said_of(name, log):
    return f"{name}: {SAID.format(f'runs/small/logs/{log}.log')}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "log", "arguments"),
    [
        pytest.param("device-2", "device-2", (), marks=pytest.mark.slow),
        ("device-2", "devices-1", ("--set", "devices.processes=1")),
        pytest.param("coordinator", "coordinator", (), marks=pytest.mark.slow),
    ],
)
def test_a_process_that_ends_without_a_message_ends_the_run_with_its_name_and_its_log(
    place, who, log, arguments
):
    ran = run(place, who, *arguments)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    first = "device-1" if log == "devices-1" else who  # of the processes that have ended with it
    assert ran.stderr.splitlines()[-1] == f"protofleet: {said_of(first, log)}", ran.stderr


@pytest.mark.slow
def test_the_run_reports_the_ended_device_and_continues_with_enough_devices(place):
    ran = run(place, "device-2", "--set", "policy.quorum=2", "--set", "policy.patience_seconds=20")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{said_of('device-2', 'device-2')}; the run goes on with 2 of 3 devices" in ran.stdout, ran.stdout
    assert [line["participants"] for line in lines(place)[:-1]] == [["device-1", "device-3"]] * 2


@pytest.mark.slow
def test_a_continued_run_that_has_finished_reports_no_early_end_of_a_process(place):
    """The run died after its last round and before its summary."""
    assert protofleet("run", "small.toml", cwd=place).returncode == 0
    summary = place / "runs" / "small" / "summary.json"
    summary.unlink()
    again = protofleet("run", "small.toml", cwd=place)
    assert again.returncode == 0 and summary.exists(), again.stderr
    assert "continuing the unfinished run" in again.stdout and "said nothing of why" not in again.stdout
