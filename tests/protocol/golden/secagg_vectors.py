"""`python -m tests.protocol.golden.secagg_vectors` writes secagg_1.json if it is not there.

The vectors are computed by tests/protocol/secagg/reference.py, which imports nothing of the product: an attempt of
four devices, of which the last one shares keys and sends no vector.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.protocol.secagg import reference as ref

FILE = Path(__file__).parent / "secagg_1.json"
NAMES = ("alice", "board-7", "carol", "dora")
LOST = 3  # place of the device that sends no vector
THRESHOLD = 3
TERMS = {
    "federation": "lab", "run": "spring", "round": 7, "attempt": bytes(range(16)).hex(), "stage": "values",
    "base": hashlib.sha256(b"broadcast").hexdigest(), "length": 5, "devices": 4, "limit": 8.0, "fraction": 8,
    "bits": 20, "least": 3, "apart": 0,
}  # fmt: skip
NUMBERS = {
    "alice": [0.0, 1.0, -1.0, 7.99, -8.0],
    "board-7": [0.5, 0.001953125, -0.001953125, 8.0, -8.0],
    "carol": [0.25, 3.14159, -2.71828, -7.5, 0.0],
}
PACKED = [
    (bits, [0, 1, 2**bits - 1, 2 ** (bits - 1), 5, 77, 200, 3, 2**bits - 2]) for bits in (8, 13, 24, 31, 32)
]


def secret(name: str, use: str) -> bytes:
    return hashlib.sha256(f"{name} {use}".encode()).digest()


def coefficients(name: str, use: str) -> list[int]:
    return [int.from_bytes(secret(name, f"{use} {power}"), "little") for power in range(1, THRESHOLD)]


def signed(name: str, statement: str, *parts: bytes | str) -> bytes:
    key = Ed25519PrivateKey.from_private_bytes(secret(name, "identity"))
    return key.sign(ref.signed_bytes(statement, *parts))


def device(name: str) -> dict[str, str]:
    """Return the keys of a device, and the bytes that it sends in the step `keys`."""
    public = ref.public_key(secret(name, "sealing")), ref.public_key(secret(name, "masking"))
    entry = (*public, ref.digest("seed", secret(name, "seed")))
    keys = b"".join(entry) + signed(name, "keys", ref.terms_hash(TERMS), name, *entry)
    identity = Ed25519PrivateKey.from_private_bytes(secret(name, "identity")).public_key().public_bytes_raw()
    found = {use: secret(name, use).hex() for use in ("identity", "sealing", "masking", "seed")}
    return {"name": name, **found, "identity_public": identity.hex(), "keys": keys.hex()}


def pair(dealer: str, holder: int) -> bytes:
    """Return the two shares that a device deals to the holder with this place."""
    return b"".join(
        ref.share(secret(dealer, use), coefficients(dealer, use), holder + 1) for use in ("masking", "seed")
    )


def vectors() -> dict[str, object]:
    devices = [device(name) for name in NAMES]
    identities = {one["name"]: bytes.fromhex(one["identity_public"]) for one in devices}
    keys = {one["name"]: bytes.fromhex(one["keys"]) for one in devices}
    rows = [(name, identities[name], keys[name]) for name in NAMES]
    roster = ref.roster_hash(TERMS, rows)
    first, survivors = ref.bitmap(range(4), 4), ref.bitmap(range(3), 4)
    bits, length = TERMS["bits"], TERMS["length"]
    masks, masked, total = [], [], [0] * length
    for name in NAMES[:LOST]:
        own = ref.self_mask(secret(name, "seed"), roster, length, bits)
        words = ref.encoded(NUMBERS[name], TERMS["fraction"], bits)
        total = [(a + b) % 2**bits for a, b in zip(total, words, strict=True)]
        hidden = [a + b for a, b in zip(words, own, strict=True)]
        for other in NAMES:
            if other != name:
                public = ref.public_key(secret(other, "masking"))
                both = ref.pair_mask(secret(name, "masking"), public, roster, name, other, length, bits)
                masks.append({"of": name, "with": other, "words": both})
                sign = 1 if name < other else -1
                hidden = [a + sign * b for a, b in zip(hidden, both, strict=True)]
        vector = ref.packed([word % 2**bits for word in hidden], bits)
        signature = signed(name, "masked", roster, first, hashlib.sha256(vector).digest())
        masked.append({
            "of": name, "numbers": NUMBERS[name], "words": words, "self_mask": own, "vector": vector.hex(),
            "signature": signature.hex(), "agree": signed(name, "agree", roster, first, survivors).hex(),
        })  # fmt: skip
    sealed = [
        {
            "from": dealer, "to": holder, "pair": pair(dealer, place).hex(),
            "sealed": ref.sealed_pair(
                secret(dealer, "sealing"), ref.public_key(secret(holder, "sealing")), roster, dealer, holder,
                pair(dealer, place),
            ).hex(),
        }
        for dealer in NAMES for place, holder in enumerate(NAMES) if dealer != holder
    ]  # fmt: skip
    released = [
        {
            "of": holder,
            "released": b"".join(
                pair(dealer, place)[33:] if dealer in NAMES[:LOST] else pair(dealer, place)[:33]
                for dealer in NAMES
            ).hex(),
        }
        for place, holder in enumerate(NAMES[:LOST])
    ]
    return {
        "terms": TERMS,
        "terms_bytes": ref.terms_bytes(TERMS).hex(),
        "terms_hash": ref.terms_hash(TERMS).hex(),
        "threshold": THRESHOLD,
        "devices": devices,
        "roster": b"".join(
            place.to_bytes(2, "little") + keys[name] for place, name in enumerate(NAMES)
        ).hex(),
        "roster_hash": roster.hex(),
        "first": first.hex(),
        "survivors": survivors.hex(),
        "pairs": sealed,
        "own_pairs": [pair(name, place).hex() for place, name in enumerate(NAMES)],
        "pair_masks": masks,
        "masked": masked,
        "released": released,
        "sum": total,
        "packed": [
            {"bits": width, "words": words, "bytes": ref.packed(words, width).hex()}
            for width, words in PACKED
        ],
        "key_stream": {"key": bytes(range(32)).hex(), "bytes": ref.stream(bytes(range(32)), 40).hex()},
    }


if __name__ == "__main__" and not FILE.exists():
    FILE.write_text(json.dumps(vectors(), indent=1) + "\n")
