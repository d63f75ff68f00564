"""What the classes of a run are called. A device whose classes have other names, or the same in another order, means
something else by its labels, and takes no part.

The settings say it; else most devices do. It is fixed when a round begins, or LISTEN_SECONDS after the first one has
contradicted, as soon as two devices and more than half of all that have said names agree: a device that comes first,
or lies, cannot decide it alone. While all agree nobody waits, and a single device is all. Where they do not, those
take part on whom it could be fixed; the others wait, and in a tie all do, however long it takes: no round mixes
labels, nobody learns alone on one's word, and nobody is refused on it. What is fixed stays, over restarts too; only
the settings are above it. What each device has said does not: after a restart with nothing fixed, or with settings
that say something else, those of before take part only with each other until they have said it again. Who is not
enrolled any more has said nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from protofleet.protocol.link.rate_limit import TokenBucket
from protofleet.protocol.wire.class_names import ClassNames, Names, difference, digest_of, listed, normalized
from protofleet.protocol.wire.messages import Hello
from protofleet.protocol.wire.reasons import Problem, Reason

log = logging.getLogger("protofleet.coordinator")

LISTEN_SECONDS: Final = 30.0  # two hellos of everybody
LOG_SECONDS: Final = 3600.0  # between lines about who waits, after the first few
LOG_BURST: Final = 5.0


class ClassNameVote:
    def __init__(
        self, classes: int, stated: Names, known: ClassNames | None, listen: float,
        enrolled: Callable[[str], bool] = lambda device: True,
    ) -> None:  # fmt: skip
        """`known` is what an earlier coordinator of this run has fixed."""
        self._enrolled = enrolled
        self._classes, self._listen = classes, min(listen, LISTEN_SECONDS)
        self.fixed, self.saved, self._known = known, known is not None, known
        self._digests: dict[str, bytes] = {}  # by each device, while nothing is fixed
        self._hellos: dict[str, Hello] = {}  # in which it was said
        self._votes: dict[bytes, int] = {}  # what was said first comes first
        self._names_of: dict[bytes, Names] = {}
        self._waiting: dict[str, Hello] = {}
        self._warned: set[str] = set()
        self._last_accepted_digest = b""  # what the devices that take part have said
        self._has_listened = False
        self._log_limit = TokenBucket(1 / LOG_SECONDS, LOG_BURST)
        self.wake_at = float("inf")
        if stated:
            self._apply_settings(ClassNames(digest_of(normalized(stated)), normalized(stated)))

    @property
    def is_open(self) -> bool:
        """Whether devices vote. A hello to an earlier coordinator does not: a broker may have kept it."""
        return self.fixed is None

    @property
    def is_as_saved(self) -> bool:
        """Whether all that an earlier coordinator has admitted say what is fixed."""
        return bool(self.fixed and self._known and self.fixed.digest == self._known.digest)

    @property
    def names(self) -> Names:
        """What devices are told. Nothing that is not fixed: they leave by it."""
        return self.fixed.names if self.fixed else ()

    def judge(self, hello: Hello, now: float) -> Problem | None:
        """Why it can take no part. Who is not refused may have to wait."""
        self._waiting.pop(hello.device, None)
        if hello.names and len(hello.names) != self._classes:
            words = f"it has {len(hello.names)} class names, this run has {self._classes} classes"
            return Problem(Reason.UNFIT, words)
        if not (digest := digest_of(hello.names) if hello.names else hello.names_hash):
            self._note_missing_names(hello.device)
            return None
        self._record_vote(hello, digest)
        if digest == self._accepted_digest():
            return None
        if self.fixed:
            return self._problem(digest, hello.names)
        self.hold(hello, now)
        return None

    def waits(self, device: str) -> bool:
        return device in self._waiting

    def left(self, device: str) -> None:
        """What it has said still counts: it may be one that was refused."""
        self._waiting.pop(device, None)

    def outvoted(self) -> list[Hello]:
        """Of the devices that have said what counted until now, and does no more; each time once."""
        before, self._last_accepted_digest = self._last_accepted_digest, self._accepted_digest()
        if before == self._last_accepted_digest:
            return []
        lost = {device for device, digest in self._digests.items() if digest != self._last_accepted_digest}
        found = [hello for device, hello in self._hellos.items() if device in lost - self._waiting.keys()]
        if self.fixed:
            self._hellos.clear()
        return found

    def released(self) -> list[Hello]:
        """Of those who have waited and need not any more; each time once."""
        accepted = self._accepted_digest()
        free = [device for device in self._waiting if self._digests.get(device) == accepted]
        return [self._waiting.pop(device) for device in free]

    def refused(self) -> dict[str, Problem]:
        """Those who have waited for what is fixed now to be something else."""
        if not self.fixed:
            return {}
        fixed = self.fixed.digest
        lost = {device: self._digests[device] for device in self._waiting if self._digests[device] != fixed}
        for device in lost:
            del self._waiting[device]
        return {
            device: self._problem(digest, self._names_of.get(digest, ())) for device, digest in lost.items()
        }

    def fix_if_decided(self) -> None:
        """Fix what most say, if enough do."""
        if self.fixed or not self._votes:
            return
        leading, total = self._leading_digest(), len(self._digests)
        if not self._is_decisive(leading):
            return
        self.fixed = ClassNames(leading, self._names_of.get(leading, ()))
        self.wake_at = 0.0 if self._waiting else float("inf")
        log.info(
            "the classes of this run are called %s, as %d of %d devices say; from now on nobody who says something "
            "else takes part", listed(self.names) or leading.hex(), self._votes[leading], total,
        )  # fmt: skip

    def wake(self, now: float) -> None:
        """Whether who contradicts has been given the time in which more devices could say who is right."""
        if not self.fixed:
            for device in [device for device in self._digests if not self._enrolled(device)]:
                self._waiting.pop(device, None)
                self._withdraw(device)
        if now >= self.wake_at:
            self.wake_at, self._has_listened = float("inf"), True
            self.fix_if_decided()

    def _apply_settings(self, stated: ClassNames) -> None:
        if self.fixed and self.fixed.digest != stated.digest:
            words = difference("class_names", stated.names, "the run so far", self.fixed.names)
            log.warning("the settings change what the classes of this run are called: %s", words)
        self.saved = self.saved and self.fixed == stated
        self.fixed = stated

    def hold(self, hello: Hello, now: float) -> None:
        """For more devices, which may say who is right, or for the settings to say it. Or to be refused, once it is
        fixed."""
        self._waiting[hello.device] = hello
        if self.fixed:
            return
        if not self._has_listened and self.wake_at == float("inf"):
            self.wake_at = now + self._listen
        if self._log_limit.take(now):
            digest = self._digests[hello.device]
            log.error(
                "%s says other class names than others, and waits (%d of %d devices do) until two devices and more "
                "than half of all that say names agree, or class_names in the coordinator's settings decides it: %s",
                hello.device, len(self._waiting), len(self._digests),
                self._explain(digest, self._names_of.get(digest, ())),
            )  # fmt: skip

    def _record_vote(self, hello: Hello, digest: bytes) -> None:
        if self.fixed:
            if self.fixed.digest == digest and hello.names and not self.fixed.names:
                self.fixed, self.saved = ClassNames(digest, hello.names), False
            return
        if self._digests.get(hello.device) != digest:
            self._withdraw(hello.device)
            self._digests[hello.device] = digest
            self._votes[digest] = self._votes.get(digest, 0) + 1
        self._hellos[hello.device] = replace(hello, names=(), names_hash=digest)
        if hello.names:
            self._names_of[digest] = hello.names
        if self._has_listened:
            self.fix_if_decided()

    def _withdraw(self, device: str) -> None:
        if (before := self._digests.pop(device, None)) is None:
            return
        self._hellos.pop(device, None)
        self._votes[before] -= 1
        if not self._votes[before]:
            del self._votes[before]
            self._names_of.pop(before, None)

    def _accepted_digest(self) -> bytes:
        """What the devices that take part say: what is fixed, or all say, or enough to fix it; in a tie nothing."""
        if self.fixed:
            return self.fixed.digest
        leading = self._leading_digest()
        return leading if len(self._votes) == 1 or self._is_decisive(leading) else b""

    def _leading_digest(self) -> bytes:
        """Of equally many what was said first."""
        return max(self._votes, key=self._votes.__getitem__, default=b"")

    def _is_decisive(self, digest: bytes) -> bool:
        return self._votes.get(digest, 0) >= 2 and 2 * self._votes[digest] > len(self._digests)

    def _problem(self, digest: bytes, said: Names) -> Problem:
        return Problem(Reason.UNFIT, f"its classes have other names: {self._explain(digest, said)}")

    def _explain(self, digest: bytes, said: Names) -> str:
        """In a tie against what others say, of which one list is enough to show that they differ."""
        against = self._accepted_digest() or next((other for other in self._votes if other != digest), b"")
        who = "this run" if self._accepted_digest() else "another's"
        names = self.names or self._names_of.get(against, ())
        words = difference("its data", said, who, names)
        return words or (
            f"SHA-256 {digest.hex()[:16]} in its data, {against.hex()[:16]} in {who}: {listed(names or said)}"
        )

    def _note_missing_names(self, device: str) -> None:
        self._withdraw(device)
        if device not in self._warned:
            self._warned.add(device)
            log.warning(
                "%s does not say what its classes are called: nobody can tell whether its labels mean the same",
                device,
            )
