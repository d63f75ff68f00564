"""The chain of a run's broadcasts: each broadcast is coded as the difference from an earlier broadcast.

A run whose codec has no stages for broadcasts has no chain. In other runs, each broadcast has these objects:

- The exact arrays are the method's own arrays. They are never sent. The differences in updates are added to them.
- The step is the coded difference of the exact arrays from the reference, which is an earlier broadcast.
- The broadcast has the arrays that a receiver decodes from the step. It is for devices that cannot use a delta.
- A delta joins all steps since an earlier broadcast. There is one delta for each broadcast that a device may hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protofleet.coordinator.round.events import Advance
from protofleet.methods.contract.base import Ask
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.contract.plan import Plan
from protofleet.methods.parts.weights import first_weights
from protofleet.protocol.coding.delta import MAX_STEPS, coded_kinds, encode_broadcast, join_steps
from protofleet.protocol.coding.update import chance_of
from protofleet.protocol.settings.codec import BROADCAST
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire.arrays import Body, parts
from protofleet.protocol.wire.kinds import kind_in
from protofleet.protocol.wire.messages import Arrays

# Number of newest broadcasts whose arrays are kept as references. After a rollback, an earlier broadcast is needed.
KEPT_BODIES: Final = 4
# Largest size of a step, as a part of the broadcast. A larger step is not worth its disk space, its entry in each
# task, and the bytes of a second object if some devices need the whole broadcast.
MOST_OF_WHOLE: Final = 7 / 8


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A broadcast of the chain, with the names of its objects."""

    round: int
    phase: str
    base: bytes  # the broadcast
    reference: bytes  # the broadcast that the step refers to; empty if there is none
    step: bytes  # empty if it saves no bytes, and for the first weights, which are not sent; their round is 0
    exact: bytes


class BroadcastChain:
    """The broadcasts of a run that devices may use as references. The chain is empty if broadcasts are not coded."""

    def __init__(self, plan: Plan, store: ObjectStore, links: Sequence[ChainLink] = ()) -> None:
        self._plan, self.store = plan, store
        self._stages = plan.coding.down if plan.coding else {}
        self.links = tuple(links)

    def __bool__(self) -> bool:
        return bool(self._stages)

    def put(self, advance: Advance, ask: Ask) -> Body:
        """Code a broadcast, store its objects, and add it to the chain; return what a receiver decodes.

        A replay of the round makes the same objects again, because only the links before this task are used.
        """
        arrays = to_numpy(ask.payload)
        earlier = self._before(advance) or self._first(arrays)
        reference = self._reference(earlier, arrays)
        name = reference.base if reference else b""
        chance = chance_of(self._plan.seed, advance.round, ask.phase, "down")
        held = self.store.open(name) if name else None
        coded = encode_broadcast(arrays, self._stages, held, chance)
        exact = self.store.put_once(arrays).object
        base = self.store.put_bytes(coded.decoded)
        # A step that saves too little is not stored, so the devices fetch the whole broadcast.
        is_short = sum(size for _, size in parts(coded.step)) <= MOST_OF_WHOLE * len(coded.decoded)
        step = self.store.put_once(coded.step).object if is_short else b""
        link = ChainLink(advance.round, ask.phase, base, name, step, exact)
        self.links = (*earlier, link)[-MAX_STEPS:]
        return self.store.open(base)

    def _before(self, advance: Advance) -> tuple[ChainLink, ...]:
        """Return the links of earlier rounds, and the links of this round up to the phase that has ended."""
        earlier = [link for link in self.links if link.round < advance.round]
        phases = [link for link in self.links if link.round == advance.round]
        ended = [place for place, link in enumerate(phases, 1) if link.phase == advance.phase]
        return (*earlier, *phases[: ended[-1] if ended else 0])

    def _reference(self, earlier: Sequence[ChainLink], arrays: Arrays) -> ChainLink | None:
        """Return the newest broadcast with the most kinds that are coded as differences.

        It must have all of these kinds that are rounded, because a rounded number without a reference loses more.
        """
        stages = {kind: self._stages[kind] for kind in coded_kinds(arrays, self._stages)}
        kinds = {kind for kind, stage in stages.items() if stage.against == BROADCAST}
        rounded = {kind for kind in kinds if stages[kind].rounds}
        best, most = None, 0
        for link in reversed(earlier):
            if self.store.has(link.base):
                held = kinds & {kind_in(name) for name in self.store.open(link.base)}
                if rounded <= held and len(held) > most:
                    best, most = link, len(held)
        return best

    def _first(self, arrays: Arrays) -> tuple[ChainLink, ...]:
        """Return the first weights of the network as the first link, if a broadcast has the same weights.

        Each device makes these weights itself, so the first broadcast costs few bytes.
        """
        first = to_numpy(first_weights(self._plan))
        known = [name for name in arrays if name in first]
        if not known or any(first[name].tobytes() != arrays[name].tobytes() for name in known):
            return ()
        made = self.store.put_once(first).object
        return (ChainLink(0, "", made, b"", b"", made),)

    @property
    def first(self) -> bytes:
        """Return the first weights, if devices may use them as a reference; otherwise b""."""
        return next((link.base for link in self.links if link.round == 0), b"")

    def exact(self, base: bytes) -> bytes:
        """Return the object with the uncoded arrays of a broadcast; return b"" if the chain has no such broadcast."""
        return next((link.exact for link in reversed(self.links) if link.base == base), b"")

    def deltas(self, base: bytes) -> Mapping[bytes, Sequence[bytes]]:
        """Return, for each reference, the steps from this reference to a broadcast, oldest step first.

        Steps that together are not smaller than the broadcast are left out. The reference b"" stands for steps
        that need no reference.
        """
        # A broadcast that does not change is in the chain twice. The first of its links leads to earlier broadcasts.
        by_base, size = {link.base: link for link in reversed(self.links)}, 0
        found: dict[bytes, Sequence[bytes]] = {}
        steps: list[bytes] = []
        most, target = self.store.size(base), base
        while (link := by_base.pop(target, None)) and link.step:
            size += self.store.size(link.step)
            if size >= most:
                break
            steps = [link.step, *steps]
            target = link.reference
            found[target] = steps
        return found

    def join(self, steps: Sequence[bytes]) -> Arrays:
        return join_steps([self.store.open(step) for step in steps])

    def prune(self, bases: set[bytes]) -> None:
        """Delete the objects that nothing needs; `bases` are the broadcasts of the stored updates."""
        kept = {link.step for link in self.links if link.step}
        for place, link in enumerate(reversed(self.links)):
            if place < KEPT_BODIES or link.base in bases:
                kept |= {link.base, link.exact}
        self.store.keep(kept)
