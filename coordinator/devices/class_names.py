"""The vote on the class names of a run.

The labels of a device are numbers, and the class names give the meaning of the numbers. A device takes no part if
its class names, or the order of its class names, differ from those of the run.

The settings decide the names. If the settings hold no names, the devices vote. Names win if at least two devices
have sent them, and if these devices are more than half of all devices that sent names. Names that have won, and
names in the settings, are called fixed. The votes are counted when a round begins. They are also counted
LISTEN_SECONDS after two devices first sent different names. So neither the first device nor a device that lies can
decide alone.

While all devices agree, no device waits, even if there is only one device. If they disagree, the devices
whose names have enough votes take part, and the other devices wait. In a tie all devices wait, without a time
limit. So no round mixes labels, no device trains alone because of its own names, and no device is refused
because of the names of one other device.

Fixed names stay, also after restarts; only the settings can change them. The votes of devices are not
stored. After a restart, there may be no fixed names, or the settings may hold other names than before. In both
cases, the devices that the earlier coordinator had admitted must send their names again. Until then, they take
part only with each other. A device that is not enrolled any more has no vote.
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

# Seconds in which devices can vote; this is enough time for two hellos of each device.
LISTEN_SECONDS: Final = 30.0
# Seconds between two log lines about waiting devices. The first LOG_BURST lines do not wait.
LOG_SECONDS: Final = 3600.0
LOG_BURST: Final = 5.0


class ClassNameVote:
    def __init__(
        self, classes: int, stated: Names, known: ClassNames | None, listen: float,
        enrolled: Callable[[str], bool] = lambda device: True,
    ) -> None:  # fmt: skip
        """Set up the vote; `known` are the names that an earlier coordinator of this run has decided."""
        self._enrolled = enrolled
        self._classes, self._listen = classes, min(listen, LISTEN_SECONDS)
        self.fixed, self.saved, self._known = known, known is not None, known
        self._digests: dict[str, bytes] = {}  # Device -> digest of its names, as long as no names are fixed.
        self._hellos: dict[str, Hello] = {}  # Device -> the hello that contained the digest of its names.
        # Digest -> number of devices that voted for it, in the order in which the digests were first sent.
        self._votes: dict[bytes, int] = {}
        self._names_of: dict[bytes, Names] = {}
        self._waiting: dict[str, Hello] = {}
        self._warned: set[str] = set()
        # Digest of the accepted class names at the last call of `outvoted`.
        self._last_accepted_digest = b""
        self._has_listened = False
        self._log_limit = TokenBucket(1 / LOG_SECONDS, LOG_BURST)
        self.wake_at = float("inf")
        if stated:
            self._apply_settings(ClassNames(digest_of(normalized(stated)), normalized(stated)))

    @property
    def is_open(self) -> bool:
        """Return whether devices still vote.

        While they vote, a hello that was sent to an earlier coordinator does not count as a vote, because a
        broker may have stored this hello for a long time.
        """
        return self.fixed is None

    @property
    def is_as_saved(self) -> bool:
        """Return whether the fixed names are equal to the names that the earlier coordinator had fixed.

        If they are equal, all devices that the earlier coordinator had admitted have these names.
        """
        return bool(self.fixed and self._known and self.fixed.digest == self._known.digest)

    @property
    def names(self) -> Names:
        """Return the fixed names; empty if no names are fixed.

        The names are sent to the devices, and a device leaves if its own names differ from them.
        """
        return self.fixed.names if self.fixed else ()

    def judge(self, hello: Hello, now: float) -> Problem | None:
        """Count the vote in a hello; return why the sender is refused, or None if the sender is not refused.

        A device that is not refused may have to wait. The method `waits` returns whether the device must wait.
        """
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
        """Remove a device from the waiting devices, because the device has left.

        The vote of the device still counts, because the device may have left after a refusal, and its class
        names may be the right ones.
        """
        self._waiting.pop(device, None)

    def outvoted(self) -> list[Hello]:
        """Return the hellos of devices that took part until now, but whose class names are now outvoted.

        Each hello is returned only once.
        """
        before, self._last_accepted_digest = self._last_accepted_digest, self._accepted_digest()
        if before == self._last_accepted_digest:
            return []
        lost = {device for device, digest in self._digests.items() if digest != self._last_accepted_digest}
        found = [hello for device, hello in self._hellos.items() if device in lost - self._waiting.keys()]
        if self.fixed:
            self._hellos.clear()
        return found

    def released(self) -> list[Hello]:
        """Return the hellos of waiting devices that may take part now, and remove them from the waiting devices."""
        accepted = self._accepted_digest()
        free = [device for device in self._waiting if self._digests.get(device) == accepted]
        return [self._waiting.pop(device) for device in free]

    def refused(self) -> dict[str, Problem]:
        """Return the waiting devices whose names differ from the fixed names, with the reason for their refusal."""
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
        """Make class names final for the run if enough devices sent these names."""
        if self.fixed or not self._votes:
            return
        leading, total = self._leading_digest(), len(self._digests)
        if not self._is_decisive(leading):
            return
        self.fixed = ClassNames(leading, self._names_of.get(leading, ()))
        self.wake_at = 0.0 if self._waiting else float("inf")
        log.info(
            "the class names of this run are %s, because %d of %d devices sent them; from now on, devices with "
            "other names take no part", listed(self.names) or leading.hex(), self._votes[leading], total,
        )  # fmt: skip

    def wake(self, now: float) -> None:
        """Withdraw the votes of devices that are no longer enrolled; count the votes when the listening time ends.

        The first contradiction between two devices starts the listening time, in which more devices can vote.
        At the end of this time the names are fixed if enough devices agree.
        """
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
            log.warning("the settings change the class names of this run: %s", words)
        self.saved = self.saved and self.fixed == stated
        self.fixed = stated

    def hold(self, hello: Hello, now: float) -> None:
        """Let a device wait until enough devices have voted, or until the settings contain the class names.

        If the names that are fixed later differ from the names of this device, the device is refused.
        """
        self._waiting[hello.device] = hello
        if self.fixed:
            return
        if not self._has_listened and self.wake_at == float("inf"):
            self.wake_at = now + self._listen
        if self._log_limit.take(now):
            digest = self._digests[hello.device]
            log.error(
                "%s has other class names than other devices, so it waits (%d of %d devices wait). The wait ends "
                "when enough devices agree: at least two, and more than half of all devices that sent names. To "
                "decide now, set class_names in the coordinator's settings. The difference is: %s",
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
        """Return the digest of the names with which devices may take part; b"" in a tie.

        If names are fixed, this is their digest. Otherwise it is the only digest that was sent, or the digest
        that has enough votes to be fixed.
        """
        if self.fixed:
            return self.fixed.digest
        leading = self._leading_digest()
        return leading if len(self._votes) == 1 or self._is_decisive(leading) else b""

    def _leading_digest(self) -> bytes:
        """Return the digest with the most votes; in a tie, the digest that was sent first."""
        return max(self._votes, key=self._votes.__getitem__, default=b"")

    def _is_decisive(self, digest: bytes) -> bool:
        return self._votes.get(digest, 0) >= 2 and 2 * self._votes[digest] > len(self._digests)

    def _problem(self, digest: bytes, said: Names) -> Problem:
        return Problem(Reason.UNFIT, f"its classes have other names: {self._explain(digest, said)}")

    def _explain(self, digest: bytes, said: Names) -> str:
        """Describe how these names differ from the names of the run.

        If the vote is a tie, the run has no names yet. Then the names of another device are used for the
        comparison.
        """
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
                "%s sends no class names, so nothing shows that its labels have the same meaning as in the run",
                device,
            )
