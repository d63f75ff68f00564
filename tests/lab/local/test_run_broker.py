"""The broker of `protofleet run` has all parties enrolled and uses TLS, unless the settings say otherwise."""

from dataclasses import replace
from functools import partial

import pytest

from protofleet.federation.enrol.local_federation import enrol_federation
from protofleet.lab.local.experiment import Experiment
from protofleet.lab.local.run import broker_of_run, prepare_folder
from protofleet.protocol.settings.reader import SettingsError, decode, encode, write_toml
from protofleet.protocol.transport import address as addresses
from tests.conftest import PATIENCE

preflight = partial(addresses.preflight, seconds=PATIENCE)  # enough even if the machine stops for a time
TABLE = {
    "name": "tiny", "rounds": 1, "method": {"name": "fedavg"}, "data": {"source": "digits"},
    "devices": {"clients": {"mnist": 2}},
}  # fmt: skip


def experiment(**broker):
    return decode(Experiment, {**TABLE, "broker": broker})


@pytest.mark.parametrize("choice", [{"kind": "mosquitto"}, {"kind": "mosquitto", "tls": "on"}])
def test_mosquitto_accepts_only_the_parties_of_the_run(tmp_path, broker, choice):
    with broker_of_run(experiment(**choice), tmp_path) as running:
        assert "TLS 1.3" in running.description
        for name in ("coordinator", "mnist-1", "mnist-2"):
            assert preflight(running.address_for(name)) is None
            assert f"/{name}/" in running.address_for(name).tls.cert
        bare = replace(running.address, tls=None)
        assert preflight(bare) is not None
    before = running.address_for("mnist-1")
    with broker_of_run(experiment(**choice), tmp_path) as again:  # a run that is continued keeps its keys
        assert (
            again.address_for("mnist-1").tls == before.tls and preflight(again.address_for("mnist-1")) is None
        )


def test_a_run_is_without_tls_only_if_the_setting_tls_is_off(tmp_path, broker):
    with broker_of_run(experiment(kind="mosquitto", tls="off"), tmp_path) as running:
        assert running.address_for("mnist-1").tls is None and "TLS" not in running.description
        assert preflight(running.address) is None
    assert (tmp_path / "enrolled" / "devices").exists(), "messages are still sealed"


def test_the_embedded_broker_has_no_tls_and_refuses_the_setting_tls(tmp_path, embedded):
    with broker_of_run(experiment(kind="embedded"), tmp_path) as running:
        assert running.address_for("mnist-1").tls is None and preflight(running.address) is None
    for kind, words in (("embedded", "cannot use TLS"), ("external", r"uses the table address\.tls")):
        with pytest.raises(SettingsError, match=words):
            experiment(kind=kind, tls="on")


def test_a_device_with_the_name_of_the_broker_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="cannot be called 'broker'"):
        enrol_federation(tmp_path, "tiny", ["d1", "broker"])


def test_a_run_that_an_earlier_version_began_is_continued(tmp_path, capsys):
    """The earlier version wrote its settings without those that were added later."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    lines = write_toml(encode(experiment())).splitlines()
    earlier = "\n".join(line for line in lines if not line.startswith("metrics_host"))
    (folder / "experiment.toml").write_text(earlier)
    prepare_folder(experiment(), tmp_path, fresh=False)
    assert "continuing the unfinished run" in capsys.readouterr().out
    (folder / "rounds.jsonl").write_text("{}\n")
    with pytest.raises(SettingsError, match="unfinished run with other settings"):
        prepare_folder(replace(experiment(), rounds=2), tmp_path, fresh=False)
