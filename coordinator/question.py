"""The open task: what the devices of the cohort must do, and how its broadcast is sent to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from protofleet.coordinator.devices.small_packets import SmallPackets
from protofleet.coordinator.devices.undelivered import Undelivered
from protofleet.coordinator.round.reader import MachineReader
from protofleet.coordinator.secagg.question import SumAsk, most_personal
from protofleet.coordinator.spool.broadcast_chain import BroadcastChain
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.base import Ask
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.wants import table_of
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.codec import MAX_HOLDS
from protofleet.protocol.wire.messages import ArraySpec, Manifest, Offer, Task, objects_of

ROUNDS: Final = "the run rounds what devices send (the table [codec]); bring the device up to date"
SUMS: Final = "the run sums masked updates (the table [secagg]); bring the device up to date"


class OpenQuestion:
    def __init__(
        self, machine: MachineReader, link: CoordinatorRunLink, spool: Spool, norm: float,
        plan: Plan | None = None, chain: BroadcastChain | None = None,
    ) -> None:  # fmt: skip
        self._machine, self._link, self._spool, self._norm = machine, link, spool, norm
        self._broadcasts, self._chain = spool.broadcasts, chain
        self._coded = plan is not None and plan.coding is not None
        # Message form -> reason why the run needs it.
        self._codec = {forms.CODEC: ROUNDS} if plan is not None and plan.codec is not None else {}
        # Forms that a run with this plan needs in each of its rounds.
        self._needed = {**self._codec, **({forms.SECAGG: SUMS} if plan is not None and plan.secagg else {})}
        self.ask: Ask | None = None
        # The newest task of training. A late update of a buffered round must have its arrays.
        self._training: Ask | None = None
        # Name of each message form that every device of the run must know -> reason why the run needs this form.
        self.uses: dict[str, str] = dict(self._needed)
        self.undelivered = Undelivered()
        self._offer: Offer | None = None  # The offer of the broadcast of the open task.
        # The specifications of the arrays of an update. They are sent to devices that can read this part of a
        # task.
        self._wanted: tuple[ArraySpec, ...] = ()
        # References from which there is a delta to the open broadcast.
        self._references: tuple[bytes, ...] = ()
        self._held: dict[str, tuple[bytes, ...]] = {}  # Hashes of the objects that each device holds.
        self._packets = SmallPackets(machine.policy.quorum)
        self._max_packet = 0  # Largest packet that the broker accepts, in bytes.
        self._carried = math.inf  # Size in bytes of the largest object that the link can send now.
        self._room = math.inf  # Bytes for one device only that a task can have now.

    def close(self) -> None:
        self.ask = self._offer = None
        self._references = ()

    def open(self, ask: Ask) -> None:
        self.ask = ask
        if not self._machine.evaluating:
            self._training = ask
        self._wanted = table_of(ask.wants, ask.payload, self._norm)

    def ask_of(self, phase: str) -> Ask | None:
        """Return the task of an update of this phase, which is expected."""
        return self.ask if self.ask is not None and self.ask.phase == phase else self._training

    def offer(self, manifest: Manifest) -> None:
        """Serve this broadcast from now on, and stop serving any earlier broadcast."""
        cohort = list(self._machine.cohort)
        holders = {device for device in {*self._held, *cohort} if self._holds(device, manifest.object)}
        holders |= {*cohort}.difference(self._machine.recipients)
        deltas = self._deltas_to(manifest.object, cohort)
        self._references = tuple(deltas)
        references = {device: self._reference_of(device) for device in cohort}
        self._offer = self._link.tasks.offer(manifest, self._broadcasts, cohort, holders, deltas, references)
        # Keep the broadcasts of earlier phases, because the updates of these phases are decoded with them.
        bases = self._spool.bases() if self._coded else set()
        self._broadcasts.keep(objects_of(self._offer) | bases | {one.object for one in deltas.values()})
        if self._chain:
            self._chain.prune(bases)

    def _deltas_to(self, broadcast: bytes, cohort: Sequence[str]) -> dict[bytes, Manifest]:
        """Return a delta for each reference that a device of the cohort may use, the newest reference first."""
        if not self._chain:
            return {}
        steps = self._chain.deltas(broadcast)
        self._references = tuple(steps)
        used = {self._reference_of(device) for device in cohort}
        return {
            reference: self._broadcasts.put_once(self._chain.join(steps[reference]), self._link.block)
            for reference in self._references
            if reference in used
        }

    def _reference_of(self, device: str) -> bytes | None:
        """Return the reference of the shortest delta that a device may use, or None.

        A device that holds no broadcast may have made the first weights itself. If it does not have the reference,
        it fetches the whole broadcast. The reference b"" stands for a delta that needs no reference.
        """
        if not (self._references and self._link.understands(device, forms.CODEC)):
            return None
        held = self._held.get(device, ()) or ((self._chain.first,) if self._chain else ())
        return next((one for one in self._references if not one or one in held), None)

    def _holds(self, device: str, broadcast: bytes) -> bool:
        """Return whether a device has a broadcast, as far as the coordinator knows.

        A device that reads codecs makes the first weights itself. If it has other weights, it fetches the broadcast.
        """
        if self._chain and broadcast == self._chain.first and self._link.understands(device, forms.CODEC):
            return True
        return broadcast in self._held.get(device, ())

    def send_to(self, device: str, round: int, phase: str, seconds: float, connected: bool) -> None:
        is_told = self._link.understands(device, forms.WANTS) and self.ask is not None
        holds = self._offer is not None and self._holds(device, self._offer.object)
        self.undelivered.sent(device, connected)
        wanted = self._wanted if is_told else ()
        took = self._spool.newest_used(device) if self._codec else None
        personal = self.ask.personal.get(device, b"") if isinstance(self.ask, SumAsk) else b""
        task = Task(round, phase, self._offer, seconds, wanted, took=took, personal=personal)
        self._link.tasks.send(device, task, holds, self._reference_of(device))

    def device_holds(self, device: str, objects: tuple[bytes, ...]) -> None:
        """Record the objects that a device has reported to hold."""
        self._held[device] = objects

    def device_answered(self, device: str, base: bytes, answer: bytes) -> None:
        """Record two objects that the device now holds: the broadcast of its task, and its own update.

        The update is recorded because the next broadcast may have the same bytes.
        """
        held = self._held.get(device, ())[-(MAX_HOLDS - 2) :]
        self._held[device] = (*held, base, answer)

    @property
    def size(self) -> int:
        """Return the size of the broadcast in bytes; 0 if there is none."""
        return self._offer.size if self._offer else 0

    @property
    def personal(self) -> int:
        """Return how many bytes for one device only the tasks of the open phase have."""
        return most_personal(self.ask)

    def carries(self, size: int, personal: int) -> bool:
        """Return whether the link is adapted to an object of this size, and to these bytes for one device only."""
        return size <= self._carried and personal <= self._room

    def adapt(self, size: int, now: float, max_packet: int | None = None, personal: int = 0) -> bool:
        """Adapt the link to objects of this size, and to tasks with `personal` bytes for one device only.

        If the broker cannot carry them, reject the connection to the broker and return False.
        """
        if max_packet is not None:
            self._max_packet = max_packet
        boxes = self._packets.manifests_may_be_objects(
            self._machine.roster, self._link.party.device_forms, now
        )
        try:
            self._link.adapt(self._max_packet, size, boxes, personal)
        except BrokerError as error:
            self._packets.broker_refused(now)
            self._link.reject_connection(error)
            return False
        self._packets.broker_accepted()
        self._carried, self._room = size, personal
        self.uses = self._link.required_forms(size) | self._needed
        return True

    def cut_anew(self) -> None:
        """Divide the broadcast into new blocks if its blocks are too large for the packets of this broker."""
        if self._offer is not None and not self._link.tasks.can_still_serve:
            self.offer(self._broadcasts.manifest(self._offer.object, self._link.block))
