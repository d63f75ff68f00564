"""A broker that moves to another host gets a certificate for this host, and all parties accept it at once."""

from dataclasses import replace
from functools import partial

from protofleet.federation.brokers.local import LocalBroker, MutualTls
from protofleet.federation.enrol.local_federation import BROKER, enrol_federation
from protofleet.protocol.transport import address as addresses
from protofleet.protocol.wire.names import COORDINATOR
from tests.conftest import PATIENCE

OTHER = "127.0.0.2"
preflight = partial(addresses.preflight, seconds=PATIENCE)  # even if the machine stops for some time


def problem_at(local, folder, host):
    """Start the broker of a federation on a host, and return why a device and the coordinator are refused."""
    tls = MutualTls(local.folder_of(BROKER), local.tls(COORDINATOR))
    with LocalBroker(folder, "mosquitto", mutual_tls=tls, host=host) as running:
        assert running.address.host == host
        return preflight(replace(running.address, tls=local.tls("d1")))


def test_all_parties_accept_a_broker_that_has_moved_to_another_host(tmp_path, broker):
    local = enrol_federation(tmp_path / "enrolled", "tiny", ["d1"])
    roots = {p.name: p.read_bytes() for p in local.root.iterdir() if p.is_file() and "key" in p.name}
    assert local.renew_broker((OTHER, "localhost"))
    assert problem_at(local, tmp_path / "logs", OTHER) is None
    assert not local.renew_broker(("localhost", OTHER)), "it is for these hosts already"
    assert {name: (local.root / name).read_bytes() for name in roots} == roots


def test_the_broker_keeps_its_key_when_its_certificate_is_made_again(tmp_path):
    local = enrol_federation(tmp_path / "enrolled", "tiny", ["d1"])
    key = (local.folder_of(BROKER) / "current" / "tls.key").read_bytes()
    for hosts in (("n1",), ("n2", "10.0.0.2"), ("n1",)):
        assert local.renew_broker(hosts)
        assert (local.folder_of(BROKER) / "current" / "tls.key").read_bytes() == key
