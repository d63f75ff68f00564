"""The demands of a device on the noise of a run."""

from dataclasses import replace

import pytest

from protofleet.edge_client.privacy import PrivacySettings
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.reader import SettingsError
from tests.support.small_federation import plan


def noisy(epsilon):
    return replace(plan("fedavg"), dp=DpSettings("device", epsilon, 1e-5, 1.0, 3))


def test_a_device_accepts_a_run_with_its_epsilon_or_a_smaller_one():
    careful = PrivacySettings(epsilon=4.0)
    for epsilon in (4.0, 0.5):
        careful.check(noisy(epsilon))
    PrivacySettings().check(plan("fedavg"))


@pytest.mark.parametrize(
    "made, found",
    [(plan("fedavg"), r"no \[dp\]"), (noisy(4.5), r"dp\.epsilon = 4\.5")],
    ids=["none", "larger"],
)
def test_a_device_refuses_a_run_with_less_noise_and_names_its_limit(made, found):
    words = rf"epsilon of at most 4 \(privacy\.epsilon\), but this run has {found}; add the table \[dp\]"
    with pytest.raises(SettingsError, match=words) as error:
        PrivacySettings(epsilon=4.0).check(made)
    assert "\n" not in str(error.value)
