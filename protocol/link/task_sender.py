"""Send the tasks of a phase, and serve their broadcast once for the whole cohort."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from protofleet.protocol.link import indirect_manifest
from protofleet.protocol.link.block_budget import Credit
from protofleet.protocol.link.broadcast import UNASKED, Broadcast
from protofleet.protocol.link.fetch import indices
from protofleet.protocol.link.run_to_devices import RunToDevices
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire import blocks, forms
from protofleet.protocol.wire.messages import BlockRequest, Delta, IndirectManifest, Manifest, Offer, Task

NO_DELTAS: Final[Mapping[bytes, Manifest]] = {}
NO_REFERENCES: Final[Mapping[str, bytes | None]] = {}


class TaskSender:
    """The sender of the tasks of a run.

    It sends a broadcast of one block directly after the tasks. It also gives credit: a device with credit sends the
    blocks of its update without a request.
    """

    def __init__(self, link: RunToDevices, credit: Credit) -> None:
        self._link, self._credit = link, credit
        self._broadcasts: dict[bytes, Broadcast] = {}
        # Reference -> delta from this reference to the open broadcast.
        self._deltas: dict[bytes, Broadcast] = {}
        # True if the cohort has less than half of the devices. Then a large block does not follow the tasks, because
        # all devices would receive this block.
        self._few = False
        # Object of one block -> devices that get it after their tasks, without a request.
        self._followers: dict[bytes, list[str]] = {}

    def _open(self) -> Iterator[Broadcast]:
        return chain(self._broadcasts.values(), self._deltas.values())

    @property
    def wake_at(self) -> float:
        return min((b.wake_at for b in self._open()), default=float("inf"))

    def wake(self, now: float) -> None:
        for broadcast in self._open():
            broadcast.wake(now)

    def offer(
        self, manifest: Manifest, store: ObjectStore, cohort: list[str], holding: set[str],
        deltas: Mapping[bytes, Manifest] = NO_DELTAS, references: Mapping[str, bytes | None] = NO_REFERENCES,
    ) -> Offer:  # fmt: skip
        """Serve an object from now on, and return the offer for the tasks.

        Only one broadcast is open at a time, so the link stops serving any other object. The object is split
        into smaller blocks if the broker has a smaller packet limit after a restart.

        A delta makes the object from a reference. `deltas` maps each reference to the manifest of its delta.
        `references` has the reference of each device that may use a delta.
        """
        if manifest.object not in self._broadcasts or not self.can_still_serve:
            manifests = self._manifests_to_serve(manifest, store)
            self._broadcasts = {one.object: self._served(one, store) for one in manifests}
            self._deltas = {}
        for reference, one in deltas.items():
            if reference not in self._deltas and self._fits_beside(one, manifest):
                self._deltas[reference] = self._served(self._link.with_new_key(one), store)
        self._followers = {}
        self._few = 2 * len(cohort) < len(self._link.party.device_forms)
        self._credit.renew(manifest.size, len(cohort))
        with_delta = {device for device in cohort if references.get(device) in self._deltas}
        self._expect(self._broadcasts.values(), cohort, holding | with_delta)
        for reference, delta in self._deltas.items():
            others = {device for device in cohort if references.get(device) != reference}
            self._expect([delta], cohort, holding | others)
        whole, *of_manifest = (broadcast.manifest for broadcast in self._broadcasts.values())
        return IndirectManifest(whole.object, whole.size, whole.key, of_manifest[0]) if of_manifest else whole

    @property
    def can_still_serve(self) -> bool:
        """Return whether the open broadcast can still be sent in its present blocks."""
        return not self._broadcasts or self._link.still_fits(
            *(one.manifest for one in self._broadcasts.values())
        )

    def _served(self, manifest: Manifest, store: ObjectStore) -> Broadcast:
        return Broadcast(manifest, self._block_sender(manifest, store), self._link.party.error_scope)

    def _fits_beside(self, delta: Manifest, whole: Manifest) -> bool:
        """Return whether a task can contain both manifests."""
        both = replace(delta, hashes=(*delta.hashes, *whole.hashes))
        return self._link.takes_blocks_of(delta) and self._link.fits(both)

    def _expect(self, broadcasts: Iterable[Broadcast], cohort: list[str], without: set[str]) -> None:
        """Expect requests from the cohort, but not from devices in `without` or devices that get blocks unasked."""
        for broadcast in broadcasts:
            sent_unasked = {device for device in cohort if self._follows(device, broadcast.manifest)}
            broadcast.expect(cohort, without | sent_unasked)

    def _manifests_to_serve(self, manifest: Manifest, store: ObjectStore) -> list[Manifest]:
        if not self._link.takes_blocks_of(manifest):
            manifest = store.manifest(manifest.object, self._link.block)
        served = [self._link.with_new_key(manifest)]
        if not self._link.fits(manifest):
            served.append(self._link.with_new_key(indirect_manifest.store(manifest, store, self._link.block)))
        return served

    def _follows(self, device: str, manifest: Manifest) -> bool:
        one_block = len(manifest.hashes) == 1 and (manifest.size <= blocks.DEFAULT_BLOCK or not self._few)
        return one_block and self._link.understands(device, forms.INLINE)

    def send(self, device: str, task: Task, holds: bool, reference: bytes | None = None) -> None:
        """Send a task, and note the device if the broadcast follows the task without a request.

        Only an object of one block follows its task. `reference` is the reference of the delta that the device may
        use; None means no delta.
        """
        offer = task.broadcast
        delta = None if holds or reference is None else self._deltas.get(reference)
        following = delta.manifest if delta else offer
        follows = isinstance(following, Manifest) and self._follows(device, following)
        if delta and reference is not None:
            task = replace(task, delta=Delta(reference, delta.manifest, follows))
        gets_credit = offer is not None and self._link.understands(device, forms.CREDIT)
        credit = self._credit.give(device) if gets_credit else 0
        self._link.send(device, replace(task, follows=follows and not delta, credit=credit))
        if follows and not holds and following is not None:
            self._followers.setdefault(following.object, []).append(device)

    def flush(self, now: float) -> None:
        """Send each block that follows tasks. It is sent once, for all devices that `send` has recorded."""
        followers, self._followers = self._followers, {}
        for broadcast in list(self._open()):
            if devices := followers.get(broadcast.manifest.object):
                with self._link.party.error_scope(devices[0]):
                    broadcast.follow(devices, now)

    def serves(self, request: BlockRequest) -> bool:
        """Return whether the request names an object that the link still serves."""
        names = {request.object, *(name for name, _ in request.more)}
        return any(broadcast.manifest.object in names for broadcast in self._open())

    def requested(self, device: str, request: BlockRequest, now: float) -> int:
        """Serve a request, and return the number of blocks that the device had not requested before."""
        requests = [BlockRequest(request.object, request.ranges, request.again)]
        requests += [BlockRequest(name, ranges, request.again) for name, ranges in request.more]
        return sum(self._serve(device, one, now) for one in requests)

    def _serve(self, device: str, request: BlockRequest, now: float) -> int:
        broadcast = next((one for one in self._open() if one.manifest.object == request.object), None)
        if broadcast is None:
            return 0
        self._link.block_qos.asked(
            len(indices(request.ranges, len(broadcast.manifest.hashes))), request.again
        )
        return broadcast.requested(device, request, now)

    def _block_sender(
        self, manifest: Manifest, store: ObjectStore
    ) -> Callable[[str | None, int, bool], None]:
        link = self._link
        topics = link.party.topics
        everyone = topics.broadcast(manifest.wire_name.hex())
        layout = link.layout_of(store, manifest.object)

        def send(device: str | None, index: int, fresh: bool) -> None:
            topic = everyone
            if device is not None:
                topic = topics.down(device) if device != UNASKED else topics.broadcast_now
            link.send_block(topic, store, manifest, index, fresh, layout)

        return send
