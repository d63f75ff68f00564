"""Answer the steps of one attempt of secure aggregation as a device.

Each step is answered once. If the same question comes again, the answer is the same; another question to the same
step is refused with SecaggError. To the coordinator, a device that refuses is a device that does not answer.

After each answer, the caller stores `book` and only then sends the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.edge_client.secagg.book import Book
from protofleet.edge_client.secagg.past_attempts import PastAttempts
from protofleet.protocol.secagg.directory import Directory
from protofleet.protocol.secagg.evidence import SumEvidence
from protofleet.protocol.secagg.field import Words
from protofleet.protocol.secagg.terms import Terms


@dataclass(frozen=True)
class MaskedAnswer:
    """The answer of the step `masked`."""

    vector: bytes  # packed words
    signature: bytes
    opened: bytes  # bitmap of the devices whose shares could be opened


class Instance:
    """A device in one attempt."""

    def __init__(self, name: str, identity: Ed25519PrivateKey, book: Book) -> None:
        """Continue an attempt from its book, for example after a restart."""
        self.name, self.book = name, book
        self._identity = identity

    @classmethod
    def begin(cls, name: str, identity: Ed25519PrivateKey, terms: Terms, past: PastAttempts) -> Instance:
        """Begin an attempt with new keys.

        `past` is `PastAttempts()` or the `past` of the last book of this run and stage. Raise SecaggError if the
        device must not take part: the round is old or spent, or the nonce was used before.
        """
        raise NotImplementedError

    def keys(self) -> bytes:
        """Return the answer of the step `keys`."""
        return self.book.keys

    def shares(self, roster: bytes, directory: Directory) -> bytes:
        """Return the sealed shares for the other devices of the roster."""
        raise NotImplementedError

    def masked(self, first: bytes, sealed: bytes, words: Words) -> MaskedAnswer:
        """Return the masked vector.

        `first` is the bitmap of the devices that shared keys, `sealed` the shares from the others of them, `words`
        the encoded vector. The caller keeps `words`; the same words give the same bytes after a restart.
        """
        raise NotImplementedError

    def agree(self, survivors: bytes) -> bytes:
        """Return the signature under the set of devices whose vectors are in the sum."""
        raise NotImplementedError

    def unmask(self, signatures: bytes) -> bytes:
        """Return the shares that unmask the sum, if enough devices have signed the same survivors.

        The secrets of this attempt are deleted, and the round is spent for this device.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Delete the secrets: the attempt has failed, the device was late, or the device refuses to go on."""
        self.book = self.book.ended()

    def checked_sum(self, evidence: SumEvidence) -> Words:
        """Return the sum that the device computes itself from the evidence, or raise SecaggError."""
        raise NotImplementedError
