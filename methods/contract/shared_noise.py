"""Noise that the devices of a masked sum share: each device adds a part, and the coordinator sees only the sum.

A sum has the parts of at least `enough` devices (protocol.secagg.roster), of which up to `dp.colluders` may tell
theirs. So each part has the variance sigma^2 / (enough - colluders). If more devices are in the sum, it has more
noise than it needs. The sum of discrete Gaussians is not one; the accountant counts the bound of Kairouz, Liu and
Steinke, "The distributed discrete Gaussian mechanism", 2021.

The devices fix the grid before they know the roster. It is the grid of the largest roster, whose noise has the most
parts and so the largest bounds. The vector is in steps of the grid, and the field has no bits behind the point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from protofleet.methods.contract.dp_fit import mechanism_of
from protofleet.protocol.privacy.mechanism import SIGMA, Mechanism
from protofleet.protocol.privacy.noise import REACH, KeyStream, Whole
from protofleet.protocol.secagg.field import Field
from protofleet.protocol.secagg.terms import enough_of, threshold
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.secagg import SecaggSettings


@dataclass(frozen=True)
class SharedNoise:
    """The noise of an attempt for rosters of at most a number of devices."""

    mechanism: Mechanism
    colluders: int

    def part(self, enough: int, key: bytes) -> Whole:
        """Return the noise of one device, in steps, if the sum has at least `enough` devices."""
        return replace(self.mechanism, parties=enough - self.colluders).draw(KeyStream(key))


def shared_noise(dp: DpSettings, secagg: SecaggSettings, numbers: int, devices: int) -> SharedNoise:
    """Return the noise for a vector of so many numbers; raise SettingsError if the budget allows none."""
    parties = enough_of(devices, secagg.least) - dp.colluders
    return SharedNoise(mechanism_of(dp, numbers, parties=parties), dp.colluders)


def noise_field(dp: DpSettings, secagg: SecaggSettings, devices: int) -> Field:
    """Return the field of a sum with shared noise; raise SettingsError if the sum of the devices could wrap.

    A vector of one number needs the least noise, so its clip has the most steps.
    """
    clip = math.ceil(SIGMA / shared_noise(dp, secagg, 1, devices).mechanism.multiplier)
    # The smallest roster has the fewest parts, so they are the largest.
    part = math.ceil(REACH * SIGMA / math.sqrt(secagg.least - dp.colluders))
    if (need := (2 * devices * (clip + part)).bit_length()) > secagg.bits:
        raise SettingsError(
            f"secagg.bits is {secagg.bits}, but with dp each of {devices} devices sends numbers up to "
            f"{clip + part:,} ({clip:,} steps for dp.clip, and {part:,} for its noise), so their sum needs {need} "
            "bits; set secagg.bits = 32"
        )
    return Field(devices, float(clip + part), 0, secagg.bits)


def demand_shared_noise(dp: DpSettings, secagg: SecaggSettings) -> None:
    """Raise SettingsError if the devices of a masked sum cannot share the noise of this budget."""
    if dp.unit != "device":
        raise SettingsError(
            f'secagg is set and dp.unit is "{dp.unit}", but devices share noise only with unit = "device"; leave '
            "secagg out, and each device adds the whole noise"
        )
    if dp.colluders > (most := most_colluders(secagg.least)):
        raise SettingsError(
            f"dp.colluders is {dp.colluders}, but with secagg.least = {secagg.least} it must be at most {most}, "
            "because more devices could have two sums of one round signed; lower dp.colluders or raise secagg.least"
        )
    noise_field(dp, secagg, secagg.least)


def most_colluders(least: int) -> int:
    """Return the most devices that may lie in a roster of `least` devices or more.

    In a roster of n devices, 2 t - n of them can sign two sets of survivors, where t is the threshold. This number
    grows by 1 if n grows by 3. It is smaller than `least`, so at least one part of the noise stays secret.
    """
    return min(least, *(2 * threshold(devices) - devices for devices in range(least, least + 3))) - 1
