"""Fetch the updates of a run within the budget of blocks that all runs share, and store the received blocks."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from protofleet.protocol.link import indirect_manifest
from protofleet.protocol.link.admission import AdmissionController, AdmitNothing
from protofleet.protocol.link.base import FrameOutcome, Received
from protofleet.protocol.link.block_budget import BlockBudget, Credit, blocks_allowed
from protofleet.protocol.link.fetch import RETRY_SECONDS, ObjectFetch, ResponseTime
from protofleet.protocol.link.inline_answer import InlineAnswer
from protofleet.protocol.link.progress import TransferProgress
from protofleet.protocol.link.run_to_devices import RunToDevices
from protofleet.protocol.storage.partial import Partial
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.messages import BlockRequest, IndirectManifest, Manifest, Offer, Update
from protofleet.protocol.wire.reasons import Reason, Rejected

# A function that takes the name of a device and returns the store of this device's updates.
Stores = Callable[[str], ObjectStore]


class AnswerFetcher:
    """The fetches of the updates that the devices have offered. Each device has at most one fetch."""

    def __init__(self, link: RunToDevices, stores: Stores, credit: Credit, budget: BlockBudget) -> None:
        self._link, self._stores, self._credit, self._budget = link, stores, credit, budget
        self.admission_controller: AdmissionController = AdmitNothing()
        # Called every few seconds with the device and the progress, during a long transfer of an update.
        self.on_progress: Callable[[str, TransferProgress], None] = lambda device, progress: None
        self.fetches: dict[str, tuple[ObjectFetch, Received]] = {}
        self._numbers: dict[str, int] = {}  # Device -> number of its offer among the offers of all runs.
        # Device -> seconds between two requests for the same block. A device is in this dict if its fetch was
        # stopped before the end of the round.
        self._retry_seconds: dict[str, float] = {}
        self._response_time = ResponseTime()
        self._response_times: dict[
            str, ResponseTime
        ] = {}  # Device -> its own, which also raises that of all.
        self._with_unfinished: set[str] = set()  # devices whose update was received only in part
        # Device -> the last offer of this device whose manifest is sent as an object.
        self._indirect_offers: dict[str, IndirectManifest] = {}
        # Names of updates that were completed recently. A further block of such an update counts as a
        # duplicate, not as an unknown block.
        self._recently_completed: deque[bytes] = deque(maxlen=64)

    @property
    def wake_at(self) -> float:
        return min((fetch.wake_at for _, fetch in self._begun()), default=float("inf"))

    def wake(self, now: float) -> None:
        in_flight = self._budget.in_flight(now)
        for device, fetch in self._begun():
            with self._link.party.error_scope(device):
                fetch.wake(now, max(1, blocks_allowed(fetch.in_flight(now), in_flight)))
        self._budget.share(now)

    @property
    def waiting_bytes(self) -> int:
        """Return the number of received bytes that are not counted yet.

        The bytes of an object cannot be counted by kind before the object's table has arrived.
        """
        return sum(fetch.count.waiting for fetch, _ in self.fetches.values())

    def abandon(self, device: str | None = None, for_good: bool = False) -> None:
        """Stop the fetch of one device's update, or of all updates if `device` is None.

        If `device` is None, the round is over, and the received parts of all updates are deleted. The
        received part of a single device's update is deleted only if `for_good` is set.
        """
        if device is None:
            self._credit.withdraw_all()
        else:
            self._credit.withdraw(device)
        for name in list(self.fetches) if device is None else [device]:
            if held := self.fetches.pop(name, None):
                self._retry_seconds[name] = held[0].retry
                self._link.end_fetch(held[0], for_good or device is None, name)
                self._with_unfinished.add(name)
        if device is None:
            for name in self._with_unfinished:
                self._stores(name).forget_unfinished()
            self._with_unfinished, self._retry_seconds = set(), {}

    @property
    def has_unfinished(self) -> bool:
        return bool(self.fetches or self._with_unfinished)

    def is_silent(self, device: str) -> bool:
        """Return True if no blocks of the device's update are arriving."""
        held = self.fetches.get(device)
        return held is None or held[0].is_silent

    def give_up(self, device: str) -> None:
        """Delete the received part of a device's update, because other updates need the space.

        The device will offer the update again.
        """
        self.abandon(device, for_good=True)
        self._stores(device).forget_unfinished()

    def use_credit(self, update: Update, attachment: InlineAnswer | Offer) -> bool:
        """Withdraw the credit of a device, because the device has sent an update.

        Return whether the device now sends the update's only block without a request.
        """
        follows = self._credit.use(update.device) and update.follows
        # The block arrives even if the update is not admitted. So the block must not count as an unknown
        # block.
        if follows and isinstance(attachment, Manifest):
            self._recently_completed.append(_name_of_blocks(update.device, attachment))
        return follows

    def offered(
        self, received: Received, update: Update, attachment: InlineAnswer | Offer, now: float, follows: bool
    ) -> list[Received]:
        """Return an admitted update if its arrays have arrived; otherwise start to fetch its arrays.

        Return an empty list for an update that is not admitted.

        `follows` says that the update has only one block, and that the device sends this block without a
        request.
        """
        name = attachment.name if isinstance(attachment, InlineAnswer) else attachment.object
        if not self.admission_controller.admit(update, attachment.size, name):
            return []
        store = self._stores(received.sender)
        with self._reject_if_unusable(update):
            if isinstance(attachment, InlineAnswer):
                store.put_bytes(attachment.data, name)
                return [replace(received, message=replace(update, arrays=attachment.arrays), object=name)]
            if store.has(name):
                return self._complete(received, update, name)
            return self._fetch(received, attachment, store, now, follows)
        return []

    @contextlib.contextmanager
    def _reject_if_unusable(self, update: Update) -> Iterator[None]:
        """Report an unusable update to the admission controller.

        If only the coordinator's disk is full, the update is usable, and the device will offer the update
        again.
        """
        try:
            yield
        except Rejected as fault:
            if fault.reason is Reason.NO_ROOM:
                raise
            self.admission_controller.unusable(update, fault)

    def _fetch(
        self, received: Received, offer: Offer, store: ObjectStore, now: float, follows: bool = False
    ) -> list[Received]:
        """Fetch the blocks of an update.

        A large manifest is itself sent as an object. Then the blocks of the manifest are fetched first.
        """
        if isinstance(offer, IndirectManifest):
            self._indirect_offers[received.sender] = offer
            is_here = store.has(offer.manifest.object)
            offer = indirect_manifest.load(offer, store) if is_here else offer.manifest
        attachment, device = offer, received.sender
        held = self.fetches.get(device)
        if held and (held[0].rekeyed(attachment) or held[0].awaits(attachment)):
            self.fetches[device] = (held[0], received)
        else:
            self.abandon(device)
            # A new offer of the same update is not progress. So the pause between requests doubles.
            retry = 2 * self._retry_seconds.pop(device, RETRY_SECONDS / 2)
            fetch = self._new_fetch(device, store.begin(attachment), retry)
            self.fetches[device], self._numbers[device] = (fetch, received), self._budget.next_offer()
            if follows:
                fetch.await_unasked(now)
                # This fetch has begun, so it must precede the waiting fetches in `fetches`. `_begun` relies on this
                # order.
                self.fetches = {device: (fetch, received), **self.fetches}
            # All blocks may be here already: an earlier process received all blocks, but ended before it could store
            # the object.
            if fetch.partial.complete:
                return self._completed(device, now)
        self._budget.share(now)
        return []

    def _new_fetch(self, device: str, partial: Partial, retry: float) -> ObjectFetch:
        def send(request: BlockRequest) -> None:
            self._link.send(device, request)

        times = self._response_times.setdefault(device, ResponseTime(self._response_time))
        return ObjectFetch(partial, send, times, retry, self._link.kinds)

    def _complete(self, received: Received, update: Update, name: bytes) -> list[Received]:
        arrays = self._stores(received.sender).open(name)
        return [replace(received, message=replace(update, arrays=arrays), object=name)]

    def knows_object(self, device: str, prefix: bytes) -> bool:
        """Return whether the blocks of this object belong to an update that is being fetched, or was fetched."""
        held = self.fetches.get(device)
        return bool(held and held[0].is_named(prefix)) or device.encode() + prefix in self._recently_completed

    def take_block(
        self, device: str, prefix: bytes, index: int, data: memoryview, now: float
    ) -> FrameOutcome:  # fmt: skip
        """Store a block; raise Rejected if the block does not belong to an object that is being fetched."""
        held = self.fetches.get(device)
        if held is None or not held[0].is_named(prefix):
            if device.encode() + prefix in self._recently_completed:
                return FrameOutcome(new=False)
            raise Rejected(
                Reason.UNKNOWN_OBJECT,
                f"a block of {prefix.hex()} has arrived, but this object is not being fetched",
            )
        size, spans, fresh = held[0].take(index, data, now)
        return FrameOutcome(held=size, spans=spans, new=fresh)

    def block_taken(self, device: str, fetch: ObjectFetch, now: float) -> list[Received]:
        """Return the update if this block completes it; otherwise request more blocks."""
        if fetch.partial.complete:
            return self._completed(device, now)
        self._budget.share(now)
        if progress := fetch.progress(now):
            self.on_progress(device, progress)
        return []

    def _completed(self, device: str, now: float) -> list[Received]:
        """Store the complete object under its name, and return the update that the object belongs to."""
        fetch, received = self.fetches.pop(device)
        self._recently_completed.append(_name_of_blocks(device, fetch.manifest))
        self._budget.share(now)
        assert isinstance(received.message, Update)
        with self._reject_if_unusable(received.message):
            fetch.partial.finish()
            offer = self._indirect_offers.get(device)
            if offer and offer.manifest.object == fetch.object:
                return self._fetch(received, offer, self._stores(device), now)
            return self._complete(received, received.message, fetch.object)
        return []

    # Methods that the budget calls.

    def in_flight(self, now: float) -> int:
        return self._credit.blocks + sum(fetch.in_flight(now) for _, fetch in self._begun())

    def waiting_order(self) -> Iterator[tuple[int, str, ObjectFetch]]:
        for device, (fetch, _) in self.fetches.items():
            yield 0 if fetch.begun else self._numbers[device], device, fetch

    def fill(self, device: str, fetch: ObjectFetch, blocks: int, now: float) -> None:
        with self._link.party.error_scope(device):
            if blocks and fetch.unasked:
                fetch.fill(blocks, now)

    def _begun(self) -> Iterator[tuple[str, ObjectFetch]]:
        """Yield the fetches that have begun.

        All other fetches of this run were added later, and wait for their share of the budget.
        """
        held = ((device, fetch) for device, (fetch, _) in self.fetches.items())
        return itertools.takewhile(lambda one: one[1].begun, held)


def _name_of_blocks(device: str, manifest: Manifest) -> bytes:
    return device.encode() + manifest.wire_name[: codec.SHORT_HASH]
