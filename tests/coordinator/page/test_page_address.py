"""Off the loopback, the page needs a certificate, and it answers only to the names in this certificate."""

import pytest

from protofleet.coordinator.page.page_address import PageAddress
from protofleet.runtime.command.errors import RunError
from tests.support.certificates import Authority


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "hall.example"])
def test_an_address_that_other_machines_can_reach_needs_a_certificate(host):
    with pytest.raises(
        ValueError, match=r"page_cert and page_key must name .* or leave page_host out, .*ssh -L"
    ):
        PageAddress(host, 8470)


@pytest.mark.parametrize(("cert", "key"), [("a.crt", ""), ("", "a.key")])
def test_a_certificate_needs_its_key(cert, key):
    with pytest.raises(ValueError, match=r"page_(cert|key) is set, but page_(cert|key) is not; set both"):
        PageAddress("127.0.0.1", 8470, cert, key)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_on_the_loopback_each_user_of_the_machine_may_view_without_tls(host):
    address = PageAddress(host, 8470)
    access = address.access()
    assert not access.login_to_view and access.tls is None
    assert address.url(access) == f"http://{f'[{host}]' if ':' in host else host}:8470/"


def test_off_the_loopback_viewing_needs_a_login_and_the_hosts_are_the_names_of_the_certificate(tmp_path):
    pair = Authority(tmp_path).issue("page", "10.0.0.7", "fd00::7")
    address = PageAddress("0.0.0.0", 443, pair.cert, pair.key)
    access = address.access()
    assert access.login_to_view and access.tls is not None
    assert access.hosts == ["10.0.0.7:443", "[fd00::7]:443", "10.0.0.7", "[fd00::7]"]
    assert address.url(access) == "https://10.0.0.7:443/"


def test_an_unusable_certificate_is_refused_in_one_line(tmp_path):
    authority = Authority(tmp_path)
    pair, other, nameless = (
        authority.issue("page", "10.0.0.7"),
        authority.issue("b", "10.0.0.8"),
        authority.issue("c"),
    )
    for cert, key, words in (
        (pair.cert, other.key, "the key must belong to the certificate"),
        (pair.cert, str(tmp_path / "none.key"), "No such file or directory"),
        (nameless.cert, nameless.key, "has no name without"),
    ):
        with pytest.raises(RunError, match=words) as told:
            PageAddress("0.0.0.0", 8470, cert, key).access()
        assert "\n" not in str(told.value)
