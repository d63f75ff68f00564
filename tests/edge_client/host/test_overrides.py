"""Remote overrides change a few settings for a limited time, and only the root can sign them."""

import pytest

from protofleet.cli.main import main
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.overrides import LONGEST_SECONDS, Overrides, OverridesFile
from protofleet.edge_client.host.sensors import Sensors
from protofleet.edge_client.host.supervisor import Supervisor
from protofleet.federation.enrol.local_federation import enrol_federation
from protofleet.protocol.security.signed_settings import TUNING, SignedTuning, issue_tuning
from protofleet.protocol.security.statements import armoured
from protofleet.protocol.wire.reasons import DisconnectReason
from tests.deploy.fleet.boards import jetson_files
from tests.support.small_federation import simulation


class Lab:
    def __init__(self, folder):
        self.fleet = enrol_federation(folder / "fleet", "lab", ["a", "b"])
        self.folder, self.path = folder, folder / "tuning"
        self.now = self.fleet.authority().now() + 10.0
        self.seen = []

    def overrides_file(self):
        own = self.fleet.folder_of("a")
        state = self.folder / "state"
        return OverridesFile(self.path, own, "a", state, self.seen.append, clock=lambda: self.now)

    def write(self, text="paused = true\n", version=5, seconds=3600, name="a", federation="lab", by=None):
        keys = (by or self.fleet).authority().keys
        settings = SignedTuning(federation, name, version, int(self.now) + seconds, text)
        part = self.path.with_suffix(".part")
        part.write_text(armoured(TUNING, issue_tuning(settings, keys)))
        part.replace(self.path)


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def test_a_signed_override_applies_until_it_expires(lab):
    overrides_file = lab.overrides_file()
    overrides_file.check()
    assert lab.seen == []
    lab.write("paused = true\nhottest_celsius = 80.0\n")
    for _ in range(3):
        overrides_file.check()
    assert lab.seen == [Overrides(paused=True, hottest_celsius=80.0)], "an unchanged file is applied once"
    lab.now += 3599
    overrides_file.check()
    assert len(lab.seen) == 1
    lab.now += 2
    overrides_file.check()
    assert lab.seen[-1] == Overrides() and len(lab.seen) == 2


def test_a_restarted_process_applies_an_override_for_the_rest_of_its_time(lab):
    lab.write()
    lab.overrides_file().check()
    again = lab.overrides_file()
    again.check()
    assert lab.seen == [Overrides(paused=True)] * 2
    lab.now += 4000
    third = lab.overrides_file()
    third.check()
    assert len(lab.seen) == 2, "the override has expired"


def test_only_a_later_version_of_an_override_replaces_an_earlier_one(lab, caplog):
    overrides_file = lab.overrides_file()
    lab.write("paused = true\n", version=6)
    overrides_file.check()
    lab.write("", version=7)
    overrides_file.check()
    assert lab.seen == [Overrides(paused=True), Overrides()]
    lab.write("paused = true\n", version=6)
    overrides_file.check()
    assert len(lab.seen) == 2 and "is version 6, but version 7 was used before" in caplog.text


REFUSED = [
    ({"name": "b"}, "for the device b, but this device is a"),
    ({"federation": "sea"}, "for another federation, sea"),
    ({"seconds": -5}, "has expired"),
    ({"seconds": LONGEST_SECONDS + 60}, "longer than the limit of 30 days"),
    ({"text": "pause = true\n"}, "did you mean paused"),
    ({"text": "paused = 1\n"}, "must be true or false"),
    ({"text": "hottest_celsius = -1.0\n"}, "must be at least 0"),
    ({"text": 'broker = "elsewhere"\n'}, "is not a setting"),
    ({"text": 'on_model = ["reload"]\n'}, "tuning.on_model is not a setting"),
    ({"text": '[models]\non_model = ["reload"]\n'}, "tuning.models is not a setting"),
    ({"text": "paused = \n"}, "is not TOML"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_an_invalid_override_is_logged_once_and_not_used(lab, caplog, change, words):
    overrides_file = lab.overrides_file()
    lab.write(**change)
    overrides_file.check()
    overrides_file.check()
    assert lab.seen == [] and caplog.text.count("tuning file is not used") == 1 and words in caplog.text


def test_an_override_without_a_signature_of_this_root_is_not_used(lab, tmp_path, caplog):
    lab.write(by=enrol_federation(tmp_path / "other", "lab", ["a"]))
    lab.overrides_file().check()
    assert lab.seen == [] and "signed by root" in caplog.text
    lab.path.write_text("paused = true\n")
    lab.overrides_file().check()
    assert lab.seen == [] and "is no tuning" in caplog.text


def supervised(agent, root, **settings):
    limits = []
    made = Supervisor(
        agent, DeviceSettings("a", **settings), lambda *what: limits.append(what), Sensors(root)
    )
    return made, limits


def test_a_paused_device_finishes_its_task_and_takes_work_again_after_the_pause(tmp_path):
    sim = simulation(tmp_path / "run", "fedavg")
    agent = sim.agents["device-1"]
    supervisor, _ = supervised(agent, tmp_path)
    sim.run(until=lambda: agent.view.working and agent.view.receipts["accepted"] == 1)
    supervisor.apply(Overrides(paused=True))
    supervisor.check()
    sim.run(until=lambda: agent.view.receipts["accepted"] == 2)
    assert sim.service.context.departures[DisconnectReason.PAUSED] == 1
    before = sim.clock.now
    sim.run(until=lambda: sim.clock.now > before + 200)
    assert agent.view.receipts["accepted"] == 2 and not agent.view.working, "it takes no new work"
    supervisor.apply(Overrides())
    supervisor.check()
    agent.wake(sim.clock.now)
    sim.run(until=lambda: agent.view.receipts["accepted"] == 3)


def test_a_board_that_is_too_hot_takes_no_work_until_it_is_well_below_the_limit(tmp_path):
    root = jetson_files(tmp_path / "board")
    zone = root / "sys/class/thermal/thermal_zone0/temp"
    agent = simulation(tmp_path / "run", "fedavg").agents["device-0"]
    supervisor, _ = supervised(agent, root, hottest_celsius=80.0)
    paused = []
    for heat in (70, 81, 78, 76, 74, 79, 90):
        zone.write_text(f"{heat * 1000}\n")
        supervisor.check()
        paused.append(agent.view.paused)
    assert paused == [False, True, True, True, False, False, True]


def test_overrides_set_and_reset_the_memory_and_time_limits_of_training(tmp_path):
    agent = simulation(tmp_path / "run", "fedavg").agents["device-0"]
    supervisor, limits = supervised(agent, tmp_path)
    supervisor.apply(Overrides(trainer_memory_bytes=5, trainer_seconds=7.0, verbose=True))
    supervisor.apply(Overrides())
    assert limits == [(5, 7.0), (0, 0.0)]


def test_deploy_tune_refuses_an_unknown_setting_and_too_many_hours(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    enrol_federation(tmp_path / "fleet", "lab", ["a"])
    (tmp_path / "fleet.toml").write_text('root = "fleet/root"\n[hosts.a]\naddress = "192.0.2.1"\n')
    assert main(["deploy", "tune", "--set", "pause=true"]) == 2
    assert "did you mean paused" in capsys.readouterr().err
    assert main(["deploy", "tune", "--set", "paused=true", "--hours", "9000"]) == 2
    assert "at most 720" in capsys.readouterr().err
