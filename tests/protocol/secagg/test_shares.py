import itertools
from collections import Counter

import pytest

from protofleet.protocol.secagg import shares
from protofleet.protocol.secagg.faults import SecaggError
from protofleet.protocol.secagg.shares import (
    NO_SHARE,
    PRIME,
    SHARE,
    coefficients,
    secret_of,
    share_value,
    split,
    weighted,
)

SECRETS = [bytes(32), bytes(range(32)), b"\xff" * 32]


def combined(found):
    """Return the secret of these shares, by point."""
    return secret_of(weighted([*found.values()], coefficients([*found], 0)))


@pytest.mark.parametrize("secret", SECRETS)
def test_any_three_of_five_shares_give_the_secret(secret):
    found = split(secret, range(1, 6), 3)
    assert {len(share) for share in found.values()} == {SHARE}
    for chosen in itertools.combinations(found, 3):
        assert combined({point: found[point] for point in chosen}) == secret


def test_two_of_three_shares_fit_every_secret():
    """The polynomial through two shares and any secret exists, so the shares exclude no secret."""
    found = split(SECRETS[1], range(1, 4), 3)
    for secret in SECRETS:
        values = [int.from_bytes(secret, "little"), *(share_value(found[point]) for point in (1, 2))]
        third = sum(a * b for a, b in zip(coefficients([0, 1, 2], 3), values, strict=True)) % PRIME
        guess = {1: found[1], 2: found[2], 3: third.to_bytes(SHARE, "little")}
        assert combined(guess) == secret


def test_two_shares_of_a_secret_are_uniform_over_a_small_field(monkeypatch):
    """Count all polynomials over the field of 7 numbers: each pair of shares comes once from each secret."""
    monkeypatch.setattr(shares, "PRIME", 7)
    for points in itertools.combinations(range(1, 7), 2):
        for secret in range(7):
            pairs = Counter(
                tuple(shares.polynomial([secret, a, b], point) for point in points)
                for a in range(7)
                for b in range(7)
            )
            assert set(pairs.values()) == {1}
            assert len(pairs) == 49


def test_each_secret_gets_new_random_coefficients():
    one, other = (split(SECRETS[1], range(1, 4), 3) for _ in range(2))
    assert all(one[point] != other[point] for point in one)


@pytest.mark.parametrize("wrong", [b"", bytes(32), bytes(34), NO_SHARE, PRIME.to_bytes(33, "little")])
def test_bytes_that_are_no_share_are_refused(wrong):
    with pytest.raises(SecaggError, match="not a share"):
        share_value(wrong)


def test_the_modulus_is_the_first_prime_above_two_to_the_256():
    def is_prime(number):
        """Test with the first 20 primes as bases (Miller and Rabin)."""
        odd, twos = number - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71):
            value = pow(base, odd, number)
            if value not in (1, number - 1) and all(
                (value := value * value % number) != number - 1 for _ in range(twos - 1)
            ):
                return False
        return True

    assert [offset for offset in range(1, 298) if is_prime(2**256 + offset)] == [297]
    assert PRIME == 2**256 + 297
