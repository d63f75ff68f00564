"""Recover the secrets that unmask a sum from the shares that the devices have released."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Final

from protofleet.protocol.secagg.control_arrays import rows_in
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.roster import Roster
from protofleet.protocol.secagg.shares import NO_SHARE, SHARE, coefficients, secret_of, share_value, weighted
from protofleet.protocol.secagg.total import SumSecrets, is_masking_key_of, is_seed_of

# The most choices of shares that are tried for one secret. With 20 devices, this finds up to 3 wrong shares.
MOST_CHOICES: Final = 1500


class SecretRecovery:
    """The search for the secrets of one sum, and for the devices that sent wrong shares.

    A holder that sent a wrong share of many devices lies. If a holder sent a wrong share of one device only, that
    device may have sealed a wrong share.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._wrong: dict[str, set[str]] = {}
        self._lost: set[str] = set()
        self._coefficients: dict[tuple[tuple[int, ...], int], list[int]] = {}

    @property
    def wrong(self) -> dict[str, frozenset[str]]:
        """Return the holders of wrong shares, each with the devices whose secrets the shares do not fit."""
        return {holder: frozenset(of) for holder, of in self._wrong.items()}

    @property
    def suspects(self) -> set[str]:
        """Return the holders of wrong shares and the devices whose secret could not be recovered."""
        return {*self._wrong, *self._lost}

    def secrets(
        self, first: Collection[str], survivors: Collection[str], released: Mapping[str, bytes]
    ) -> SumSecrets:
        """Return the secrets of all devices of `first`, or raise SecaggError.

        `first` is in the order of the roster. `released` is the answer of each device to the step `unmask`.
        """
        seeds: dict[str, bytes] = {}
        lost: dict[str, bytes] = {}
        rows = {holder: rows_in(data, len(first), SHARE, "released") for holder, data in released.items()}
        for place, name in enumerate(first):
            shares = {holder: row[place] for holder, row in rows.items() if row[place] != NO_SHARE}
            if name in survivors:
                seeds[name] = self._secret(name, shares, is_seed_of)
            else:
                lost[name] = self._secret(name, shares, is_masking_key_of)
        return SumSecrets(seeds, lost)

    def _secret(
        self, name: str, shares: Mapping[str, bytes], fits: Callable[[Roster, str, bytes], bool]
    ) -> bytes:
        needed = self._roster.threshold
        for chosen in islice(self._choices(shares, needed), MOST_CHOICES):
            try:
                secret = secret_of(self._value(shares, chosen, 0))
            except SecaggError:
                continue
            if fits(self._roster, name, secret):
                self._note_wrong(name, shares, chosen)
                return secret
        self._lost.add(name)
        raise SecaggError(
            SecaggFault.BAD_SHARES,
            f"{len(shares)} shares of {name}, of which {needed} are needed, give no secret that {name} has committed "
            "to",
        )

    def _choices(self, shares: Collection[str], needed: int) -> Iterator[tuple[str, ...]]:
        """Yield choices of `needed` holders: all choices among the first k holders before one with holder k + 1.

        The holders without a wrong share are first. With f wrong shares, the search ends at k = needed + f.
        """
        holders = sorted(shares, key=lambda holder: (len(self._wrong.get(holder, ())), holder))
        for last in range(needed - 1, len(holders)):
            for others in combinations(holders[:last], needed - 1):
                yield (*others, holders[last])

    def _note_wrong(self, name: str, shares: Mapping[str, bytes], chosen: Sequence[str]) -> None:
        """Note the holders whose share is not on the polynomial of the chosen shares."""
        for holder in sorted(set(shares) - set(chosen)):
            expected = self._value(shares, chosen, self._roster.point(holder))
            if expected != share_value(shares[holder]):
                self._wrong.setdefault(holder, set()).add(name)

    def _value(self, shares: Mapping[str, bytes], chosen: Sequence[str], place: int) -> int:
        """Return the value at `place` of the polynomial through the chosen shares."""
        points = tuple(self._roster.point(holder) for holder in chosen)
        if (points, place) not in self._coefficients:
            self._coefficients[points, place] = coefficients(points, place)
        return weighted([shares[holder] for holder in chosen], self._coefficients[points, place])
