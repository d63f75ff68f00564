"""Send the tasks of a phase, and serve their broadcast once for the whole cohort."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from protofleet.protocol.link import indirect_manifest
from protofleet.protocol.link.block_budget import Credit
from protofleet.protocol.link.broadcast import UNASKED, Broadcast
from protofleet.protocol.link.fetch import indices
from protofleet.protocol.link.to_devices import LinkToDevices
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire import blocks, forms
from protofleet.protocol.wire.messages import BlockRequest, IndirectManifest, Manifest, Offer, Task


class TaskSender:
    """The sender of tasks.

    It sends a broadcast of one block directly after the tasks, and gives the devices credit for their
    updates.
    """

    def __init__(self, link: LinkToDevices, credit: Credit) -> None:
        self._link, self._credit = link, credit
        self._broadcasts: dict[bytes, Broadcast] = {}
        # True if this link may send the open broadcast directly after the tasks, before a device requests it.
        self._may_follow = True
        # Devices that get the open broadcast after their tasks, without a request.
        self._followers: list[str] = []

    @property
    def wake_at(self) -> float:
        return min((b.wake_at for b in self._broadcasts.values()), default=float("inf"))

    def wake(self, now: float) -> None:
        for broadcast in self._broadcasts.values():
            broadcast.wake(now)

    def offer(self, manifest: Manifest, store: ObjectStore, cohort: list[str], holding: set[str]) -> Offer:
        """Serve an object from now on, and return the offer for the tasks.

        Only one broadcast is open at a time, so the link stops serving any other object. The object is split
        into smaller blocks if the broker has a smaller packet limit after a restart.
        """
        if manifest.object not in self._broadcasts or not self.can_still_serve:
            self._broadcasts = {
                one.object: Broadcast(one, self._block_sender(one, store), self._link.error_scope)
                for one in self._manifests_to_serve(manifest, store)
            }
        self._followers = []
        # All devices receive a block that follows the tasks. So a large block is not sent in this way if only
        # a few devices need it.
        few = 2 * len(cohort) < len(self._link.device_forms)
        self._may_follow = manifest.size <= blocks.DEFAULT_BLOCK or not few
        self._credit.renew(manifest.size, len(cohort))
        for broadcast in self._broadcasts.values():
            sent_unasked = {device for device in cohort if self._follows(device, broadcast.manifest)}
            broadcast.expect(cohort, holding | sent_unasked)
        whole, *of_manifest = (broadcast.manifest for broadcast in self._broadcasts.values())
        return IndirectManifest(whole.object, whole.size, whole.key, of_manifest[0]) if of_manifest else whole

    @property
    def can_still_serve(self) -> bool:
        """Return whether the open broadcast can still be sent in its present blocks."""
        return not self._broadcasts or self._link.still_fits(
            *(one.manifest for one in self._broadcasts.values())
        )

    def _manifests_to_serve(self, manifest: Manifest, store: ObjectStore) -> list[Manifest]:
        if not self._link.takes_blocks_of(manifest):
            manifest = store.manifest(manifest.object, self._link.block)
        served = [self._link.with_new_key(manifest)]
        if not self._link.fits(manifest):
            served.append(self._link.with_new_key(indirect_manifest.store(manifest, store, self._link.block)))
        return served

    def _follows(self, device: str, manifest: Manifest) -> bool:
        one_block = len(manifest.hashes) == 1 and self._may_follow
        return one_block and self._link.understands(device, forms.INLINE)

    def send(self, device: str, task: Task, holds: bool) -> None:
        """Send a task, and note the device if the broadcast follows the task without a request.

        Only a broadcast of one block follows its task.
        """
        offer = task.broadcast
        follows = isinstance(offer, Manifest) and self._follows(device, offer)
        gets_credit = offer is not None and self._link.understands(device, forms.CREDIT)
        credit = self._credit.give(device) if gets_credit else 0
        self._link.send(device, replace(task, follows=follows, credit=credit))
        if follows and not holds:
            self._followers.append(device)

    def flush(self, now: float) -> None:
        """Send the broadcast that follows the tasks, once for all devices that `send` has noted."""
        followers, self._followers = self._followers, []
        if not followers:
            return
        for broadcast in list(self._broadcasts.values())[:1]:
            with self._link.error_scope(followers[0]):
                broadcast.follow(followers, now)

    def requested(self, device: str, request: BlockRequest, now: float) -> int:
        """Serve a request, and return the number of blocks that the device had not requested before."""
        requests = [BlockRequest(request.object, request.ranges, request.again)]
        requests += [BlockRequest(name, ranges, request.again) for name, ranges in request.more]
        return sum(self._serve(device, one, now) for one in requests)

    def _serve(self, device: str, request: BlockRequest, now: float) -> int:
        broadcast = self._broadcasts.get(request.object)
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
        everyone = link.topics.broadcast(manifest.wire_name.hex())
        layout = link.layout_of(store, manifest.object)

        def send(device: str | None, index: int, fresh: bool) -> None:
            topic = everyone
            if device is not None:
                topic = link.topics.down(device) if device != UNASKED else link.topics.broadcast_now
            link.send_block(topic, store, manifest, index, fresh, layout)

        return send
