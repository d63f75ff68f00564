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
from protofleet.methods.contract.private_sums import SampleSums
from protofleet.protocol.privacy.mechanism import SIGMA, Mechanism
from protofleet.protocol.privacy.noise import REACH, KeyStream, Whole
from protofleet.protocol.secagg.field import MOST_BITS, Field
from protofleet.protocol.secagg.terms import enough_of, threshold
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.secagg import MOST_DEVICES, SecaggSettings


@dataclass(frozen=True)
class SharedNoise:
    """The noise of an attempt for rosters of at most a number of devices."""

    mechanism: Mechanism
    colluders: int

    def part(self, enough: int, key: bytes) -> Whole:
        """Return the noise of one device, in steps, if the sum has at least `enough` devices."""
        return replace(self.mechanism, parties=enough - self.colluders).draw(KeyStream(key))


def shared_noise(
    dp: DpSettings, secagg: SecaggSettings, numbers: int, devices: int, sums: SampleSums | None = None
) -> SharedNoise:
    """Return the noise for a vector of so many numbers; raise SettingsError if the budget allows none.

    `sums` are the sums of the method under `dp.unit = "sample"`.
    """
    parties = enough_of(devices, secagg.least) - dp.colluders
    return SharedNoise(mechanism_of(dp, numbers, sums, parties), dp.colluders)


def largest_part(dp: DpSettings, secagg: SecaggSettings) -> int:
    """Return the largest number in the noise of one device, in steps.

    The smallest roster has the fewest parts, so they are the largest.
    """
    return math.ceil(REACH * SIGMA / math.sqrt(secagg.least - dp.colluders))


def noise_field(dp: DpSettings, secagg: SecaggSettings, devices: int) -> Field:
    """Return the field of a sum with shared noise; raise SettingsError if the sum of the devices could wrap.

    A vector of one number needs the least noise, so its clip has the most steps.
    """
    clip = math.ceil(SIGMA / shared_noise(dp, secagg, 1, devices).mechanism.multiplier)
    part = largest_part(dp, secagg)
    if (need := (2 * devices * (clip + part)).bit_length()) > secagg.bits:
        raise SettingsError(
            f"secagg.bits is {secagg.bits}, but with dp each of {devices} devices sends numbers up to "
            f"{clip + part:,} ({clip:,} steps for dp.clip, and {part:,} for its noise), so their sum needs {need} "
            "bits; set secagg.bits = 32"
        )
    return Field(devices, float(clip + part), 0, secagg.bits)


def samples_field(secagg: SecaggSettings, devices: int) -> Field:
    """Return the field of a sum over samples, in which each device has an equal part of the words."""
    return Field(devices, float(((1 << secagg.bits) - 1) // (2 * devices)), 0, secagg.bits)


def most_samples(dp: DpSettings, secagg: SecaggSettings, devices: int, sums: SampleSums) -> int:
    """Return the most samples of a device whose sums and noise fit into its part of the words."""
    room = samples_field(secagg, devices).steps - largest_part(dp, secagg) - 1
    each = sums.largest / shared_noise(dp, secagg, sums.numbers, devices, sums).mechanism.step
    return max(0, math.floor(room / each))


def demand_room(dp: DpSettings, secagg: SecaggSettings, devices: int, sums: SampleSums, samples: int) -> None:
    """Raise SettingsError if a device with so many samples cannot take part in a sum of so many devices."""
    if samples > (most := most_samples(dp, secagg, devices, sums)):
        bits = "set secagg.bits = 32, or " if secagg.bits < MOST_BITS else ""
        raise SettingsError(
            f"{samples:,} samples are too many: with secagg.bits = {secagg.bits}, dp.epsilon = {dp.epsilon:g} and "
            f"{devices} devices, a device may have {most:,}, or the sum could wrap; {bits}lower dp.epsilon or "
            "policy.cohort"
        )


def demand_shared_noise(dp: DpSettings, secagg: SecaggSettings, sums: SampleSums | None = None) -> None:
    """Raise SettingsError if the devices of a masked sum cannot share the noise of this budget.

    `sums` are the sums of the method under `dp.unit = "sample"`.
    """
    if dp.colluders > (most := most_colluders(secagg.least)):
        raise SettingsError(
            f"dp.colluders is {dp.colluders}, but with secagg.least = {secagg.least} it must be at most {most}, "
            "because more devices could have two sums of one round signed; lower dp.colluders or raise secagg.least"
        )
    demand_field(dp, secagg, secagg.least, sums)


def demand_field(dp: DpSettings, secagg: SecaggSettings, devices: int, sums: SampleSums | None) -> None:
    """Raise SettingsError if a sum of so many devices could wrap, or if no device could have a sample in it."""
    if sums is None:
        noise_field(dp, secagg, devices)
    elif most_samples(dp, secagg, devices, sums) < 1:
        raise SettingsError(
            f"secagg.bits is {secagg.bits}, but with dp.epsilon = {dp.epsilon:g}, a sum of {devices} devices has no "
            "room for a single sample beside the noise; set secagg.bits = 32"
        )


def largest_share(dp: DpSettings, secagg: SecaggSettings) -> float:
    """Return the largest variance of the noise in a sum, as a multiple of the variance of the fewest devices' noise.

    All devices of a roster may be in the sum, and each part is made for the fewest of them.
    """
    rosters = range(secagg.least, MOST_DEVICES + 1)
    return max(n / (enough_of(n, secagg.least) - dp.colluders) for n in rosters)


def most_colluders(least: int) -> int:
    """Return the most devices that may lie in a roster of `least` devices or more.

    In a roster of n devices, 2 t - n of them can sign two sets of survivors, where t is the threshold. This number
    grows by 1 if n grows by 3. It is smaller than `least`, so at least one part of the noise stays secret.
    """
    return min(least, *(2 * threshold(devices) - devices for devices in range(least, least + 3))) - 1
