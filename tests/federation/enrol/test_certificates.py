import datetime as dt

from protofleet.federation.enrol.certificates import MOST_COMMON_NAME, common_name, new_tls_ca


def test_the_longest_name_of_a_federation_fits_into_the_name_of_its_authority():
    now = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    name = common_name(new_tls_ca("f" * 64, 12, now, now + dt.timedelta(days=1)).cert.subject)
    assert len(name) == MOST_COMMON_NAME and name.endswith(" broker CA 12") and name.startswith("fff")
    assert (
        common_name(new_tls_ca("lab", 1, now, now + dt.timedelta(days=1)).cert.subject) == "lab broker CA 1"
    )
