"""Answer the steps of one attempt of secure aggregation as a device.

Each step is answered once. If the same question comes again, the answer is the same; another question to the same
step is refused with SecaggError. To the coordinator, a device that refuses is a device that does not answer.

After each answer, the caller stores `book` and only then sends the answer.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.edge_client.secagg.book import AttemptSecrets, Book
from protofleet.edge_client.secagg.past_attempts import PastAttempts
from protofleet.protocol.secagg.control_arrays import pack_names, rows_in, unpack_names, unpack_signatures
from protofleet.protocol.secagg.directory import Directory
from protofleet.protocol.secagg.evidence import SumEvidence
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.field import Words
from protofleet.protocol.secagg.masks import KEY, add_pair_mask, pair_key, public_key, self_mask, shared_key
from protofleet.protocol.secagg.packing import pack
from protofleet.protocol.secagg.roster import Roster, RosterEntry, read_roster
from protofleet.protocol.secagg.sealing import SEALED_PAIR, open_pair, seal_pair
from protofleet.protocol.secagg.shares import NO_SHARE, SHARE, split
from protofleet.protocol.secagg.signing import sign, verify
from protofleet.protocol.secagg.terms import Terms
from protofleet.protocol.secagg.total import commitment_of, unmasked_sum


@dataclass(frozen=True)
class MaskedAnswer:
    """The answer of the step `masked`."""

    vector: bytes  # packed words
    signature: bytes
    opened: bytes  # bitmap of the devices whose shares could be opened


class Instance:
    """A device in one attempt.

    A device has one instance for each run and stage. When it begins another attempt, it forgets the instance of the
    attempt before, so it never helps to unmask two sums of a round.
    """

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
        memory = past.with_attempt(terms)
        drawn = AttemptSecrets(secrets.token_bytes(KEY), secrets.token_bytes(KEY), secrets.token_bytes(KEY))
        public = public_key(drawn.sealing), public_key(drawn.masking), commitment_of(drawn.seed)
        entry = RosterEntry(name, *public, sign(identity, "keys", terms.hash, name, *public))
        return cls(name, identity, Book(terms, memory, entry.encode(), drawn))

    def keys(self) -> bytes:
        """Return the answer of the step `keys`."""
        self._check_open()
        return self.book.keys

    def shares(self, roster: bytes, directory: Directory) -> bytes:
        """Return the sealed shares for the other devices of the roster, in its order.

        `directory` has the devices whose records this device has checked. Raise SecaggError if a device of the
        roster is not in the directory, if a signature was made for other terms, or if the roster does not contain
        this device's own keys.
        """
        self._check_open()
        found = read_roster(self.book.terms, roster, directory)
        if self.book.roster:
            _check_same("shares", self.book.read_roster().hash, found.hash)
            return self.book.shares
        self._check_own_entry(found)
        found.verify()
        own, sealed = self._dealt(found)
        enrolled = Directory(dict(zip(found.names, found.identities, strict=True)))
        self.book = replace(
            self.book,
            secrets=replace(self._secrets(), own=own),
            directory=enrolled,
            roster=found.encode(enrolled),
            shares=sealed,
        )
        return sealed

    def masked(self, first: bytes, sealed: bytes, words: Words) -> MaskedAnswer:
        """Return the masked vector.

        `first` is the bitmap of the devices that shared keys, `sealed` the shares from the others of them, `words`
        the encoded vector. The caller keeps `words`; the same words give the same bytes after a restart. Other words
        are refused, because the difference of two masked vectors is the difference of the vectors.
        """
        roster, book = self.book.read_roster(), self.book
        opened = self._secrets().opened
        if book.first:
            _check_same("masked", book.first, first)
        else:
            opened = self._opened(roster, first, sealed)
        vector = self._vector(roster, unpack_names(roster, first), words)
        digest = hashlib.sha256(vector).digest()
        if book.vector:
            _check_same("masked", book.vector, digest)
        self.book = replace(book, secrets=replace(self._secrets(), opened=opened), first=first, vector=digest)
        names = [name for name, pair in zip(unpack_names(roster, first), opened, strict=True) if pair]
        signature = sign(self._identity, "masked", roster.hash, first, digest)
        return MaskedAnswer(vector, signature, pack_names(roster, names))

    def agree(self, survivors: bytes) -> bytes:
        """Return the signature under the set of devices whose vectors are in the sum, given as a bitmap."""
        self._check_open()
        roster, book = self.book.read_roster(), self.book
        if not book.vector:
            raise _left_out("masked")
        if book.survivors:
            _check_same("agree", book.survivors, survivors)
        else:
            self._check_survivors(roster, unpack_names(roster, survivors))
        self.book = replace(book, survivors=survivors)
        return sign(self._identity, "agree", roster.hash, book.first, survivors)

    def unmask(self, signatures: bytes) -> bytes:
        """Return the shares that unmask the sum, if enough devices have signed the same survivors.

        The secrets of this attempt are deleted, and the round is spent for this device. For a device in the sum, the
        share of its seed is released. For a device that shared keys and sent no vector, the share of its masking key
        is released. A device never releases both shares of another device.
        """
        self._check_open()
        roster, book = self.book.read_roster(), self.book
        if not book.survivors:
            raise _left_out("agree")
        if not book.released:
            survivors = unpack_names(roster, book.survivors)
            self._check_agreed(roster, survivors, unpack_signatures(roster, signatures))
            self.book = replace(
                book,
                past=book.past.with_sum(survivors),
                released=self._released(roster, survivors),
                secrets=None,
            )
        return self.book.released

    def end(self) -> None:
        """Delete the secrets: the attempt has failed, the device was late, or the device refuses to go on."""
        self.book = self.book.ended()

    def checked_sum(self, evidence: SumEvidence) -> Words:
        """Return the sum that the device computes itself from the evidence.

        So the coordinator cannot state another sum. Raise SecaggError if a vector was not signed for this attempt,
        or if a secret is not the one that its device committed to.
        """
        roster, book = self.book.read_roster(), self.book
        if not book.survivors:
            raise _left_out("agree")
        survivors = unpack_names(roster, book.survivors)
        if set(evidence.vectors) != set(survivors) or set(evidence.signatures) != set(survivors):
            raise SecaggError(
                SecaggFault.WRONG_SET, "the evidence is of other devices than this device agreed to"
            )
        for name, vector in evidence.vectors.items():
            digest = hashlib.sha256(vector).digest()
            signature = evidence.signatures[name]
            verify(roster.identity(name), name, signature, "masked", roster.hash, book.first, digest)
        return unmasked_sum(roster, unpack_names(roster, book.first), evidence.vectors, evidence.secrets)

    def _check_open(self) -> None:
        if self.book.secrets is None and not self.book.released:
            raise SecaggError(SecaggFault.OVER, "this attempt has ended at this device")

    def _secrets(self) -> AttemptSecrets:
        if self.book.secrets is None:
            raise SecaggError(SecaggFault.OVER, "this attempt has ended at this device")
        return self.book.secrets

    def _check_own_entry(self, roster: Roster) -> None:
        """Raise SecaggError unless the roster has this device's keys, and its record has this device's identity."""
        identity = self._identity.public_key().public_bytes_raw()
        own = self.name in roster.names and roster.entry(self.name).encode() == self.book.keys
        if not own or roster.identity(self.name) != identity:
            raise SecaggError(
                SecaggFault.OWN_ENTRY, f"the roster does not have the keys that {self.name} has sent"
            )

    def _dealt(self, roster: Roster) -> tuple[bytes, bytes]:
        """Return the pair of shares for this device itself, and the sealed pairs for the others."""
        drawn, points = self._secrets(), [roster.point(name) for name in roster.names]
        masking, seed = (split(secret, points, roster.threshold) for secret in (drawn.masking, drawn.seed))
        own, sealed = b"", []
        for entry in roster:
            point = roster.point(entry.name)
            pair = masking[point] + seed[point]
            if entry.name == self.name:
                own = pair
                continue
            key = shared_key(drawn.sealing, entry.sealing, "share", roster.hash, self.name, entry.name)
            sealed.append(seal_pair(key, pair, roster.hash))
        return own, b"".join(sealed)

    def _opened(self, roster: Roster, first: bytes, sealed: bytes) -> tuple[bytes, ...]:
        """Return the pair of shares from each device of `first`, or b"" where a pair does not open.

        One device that seals nonsense must not stop the others. Its secrets can be recovered if enough devices have
        a share of it.
        """
        names = unpack_names(roster, first)
        if self.name not in names:
            raise SecaggError(SecaggFault.WRONG_SET, "this device is not among the devices that shared keys")
        if len(names) < roster.enough:
            raise _too_few(len(names), roster.enough, "shared keys")
        others = [name for name in names if name != self.name]
        rows = dict(zip(others, rows_in(sealed, len(others), SEALED_PAIR, "shares"), strict=True))
        opened = tuple(self._pair_from(roster, name, rows) for name in names)
        if sum(map(bool, opened)) < roster.threshold:
            found = sum(map(bool, opened))
            raise SecaggError(
                SecaggFault.BAD_SHARES,
                f"only {found} of {len(names)} sealed shares open, but {roster.threshold} are needed",
            )
        return opened

    def _pair_from(self, roster: Roster, name: str, sealed: dict[str, bytes]) -> bytes:
        drawn = self._secrets()
        if name == self.name:
            return drawn.own
        key = shared_key(drawn.sealing, roster.entry(name).sealing, "share", roster.hash, name, self.name)
        try:
            return open_pair(key, sealed[name], roster.hash)
        except SecaggError:
            return b""

    def _vector(self, roster: Roster, first: Sequence[str], words: Words) -> bytes:
        """Return the packed words with the device's own mask and a mask for each other device of `first`."""
        terms, drawn = self.book.terms, self._secrets()
        if words.shape != (terms.length,):
            raise ValueError(
                f"the vector has the shape {words.shape}, but the terms have {terms.length} numbers"
            )
        field = terms.field
        masked = field.add(words, self_mask(drawn.seed, roster.hash, terms.length, field.bits))
        for name in first:
            if name != self.name:
                key = pair_key(drawn.masking, roster.entry(name).masking, roster.hash, self.name, name)
                masked = add_pair_mask(field, masked, key, adds=self.name < name)
        return pack(masked, field.bits)

    def _check_survivors(self, roster: Roster, survivors: Sequence[str]) -> None:
        first = unpack_names(roster, self.book.first)
        if not set(survivors) <= set(first):
            raise SecaggError(SecaggFault.WRONG_SET, "a survivor did not share its keys")
        if self.name not in survivors:
            raise SecaggError(SecaggFault.WRONG_SET, "this device is not among the survivors")
        if len(survivors) < roster.enough:
            raise _too_few(len(survivors), roster.enough, "sent a vector")
        self.book.past.check_cohort(self.book.terms, survivors)

    def _check_agreed(self, roster: Roster, survivors: Sequence[str], signatures: dict[str, bytes]) -> None:
        if not set(signatures) <= set(survivors):
            raise SecaggError(SecaggFault.WRONG_SET, "a signature of a device that is not a survivor")
        if len(signatures) < roster.threshold:
            raise _too_few(len(signatures), roster.threshold, "signed the survivors")
        parts = (roster.hash, self.book.first, self.book.survivors)
        for name, signature in signatures.items():
            verify(roster.identity(name), name, signature, "agree", *parts)

    def _released(self, roster: Roster, survivors: Sequence[str]) -> bytes:
        """Return one share for each device that shared keys; NO_SHARE if the device's shares did not open."""
        first, opened = unpack_names(roster, self.book.first), self._secrets().opened
        return b"".join(
            (pair[SHARE:] if name in survivors else pair[:SHARE]) or NO_SHARE
            for name, pair in zip(first, opened, strict=True)
        )


def _check_same(step: str, before: bytes, now: bytes) -> None:
    if before != now:
        raise SecaggError(
            SecaggFault.CHANGED_QUESTION, f"the step {step!r} was asked before with other contents"
        )


def _left_out(step: str) -> SecaggError:
    return SecaggError(SecaggFault.OVER, f"the step {step!r} was left out")


def _too_few(found: int, needed: int, what: str) -> SecaggError:
    return SecaggError(SecaggFault.TOO_FEW, f"{found} devices {what}, but {needed} are needed")
