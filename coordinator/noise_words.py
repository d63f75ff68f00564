"""Describe before a run with `[dp]` begins what its noise means for this number of devices."""

from __future__ import annotations

import math

from protofleet.coordinator.spool.releases import released_numbers
from protofleet.methods.contract.dp_fit import mechanism_of
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.shared_noise import most_samples
from protofleet.methods.contract.summed import noise_of_sum


def noise_words(plan: Plan, devices: int) -> str:
    """Return the noise on each number and in the mean of so many devices; the plan has `dp`."""
    dp = plan.dp
    assert dp is not None, "a run without dp has no noise"
    numbers = released_numbers(plan)
    sums, secagg = plan.sums, plan.secagg
    shared = noise_of_sum(plan, numbers, devices)
    mechanism = shared.mechanism if shared else mechanism_of(dp, numbers, sums)
    share = mechanism.deviation / dp.clip
    each = f"{share:.3g} times dp.clip to each of {numbers:,} numbers"
    added = f"Each device adds noise of {each}"
    if shared:
        fewest = mechanism.parties + shared.colluders
        honest = f" {mechanism.parties} of them honest," if shared.colluders else ""
        added = f"The devices share noise: {fewest} devices, the fewest in a sum,{honest} add noise of {each}"
    words = (
        f"dp: epsilon {dp.epsilon:g} at delta {dp.delta:g} for each {dp.unit}, in at most {dp.rounds} "
        f"release{'s' * (dp.rounds > 1)} of a device. {added}"
    )
    if sums is not None and secagg is not None:
        most = most_samples(dp, secagg, devices, sums)
        return f"{words}. A device with more than {most:,} samples takes no part"
    if dp.unit == "sample":
        return f"{words}. In the sum of {devices} devices, this is {share * math.sqrt(devices):.3g} times dp.clip"
    # The noises of the devices are independent, so their mean is shorter by the root of their number. Shared noise is
    # also shorter in each device.
    length = mechanism.multiplier * math.sqrt(numbers) / math.sqrt(max(1, devices) * mechanism.parties)
    words += (
        f". In the mean of {devices} devices, the noise is {length:.3g} times as long as the longest update"
    )
    if length > 1:
        words += (
            ", so the result of a round is mostly noise; more devices, fewer rounds, a larger dp.epsilon or a "
            "smaller network make the noise shorter"
        )
    return words
