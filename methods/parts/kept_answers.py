"""The answers that a server half keeps for the whole run: the newest answer of each device."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from protofleet.methods.contract.base import Payload, Reply
from protofleet.methods.parts.state import names_from_tensor, names_to_tensor, snapshot

DEVICES, EXAMPLES, ANSWER = "devices", "examples", "answer"


class KeptAnswers:
    """The newest answer of each device. A device that answers again replaces its answer.

    A server half makes all its sums again from `replies`, which is ordered by device. So the result has the same
    bits, however the answers are spread over rounds. The kept arrays are never changed in place.
    """

    def __init__(self) -> None:
        self._replies: dict[str, Reply] = {}

    def keep(self, replies: Iterable[Reply]) -> None:
        """Copy the answers of a phase into memory, because they are deleted from the disk after the round."""
        for reply in replies:
            self._replies[reply.device] = Reply(reply.device, reply.examples, snapshot(reply.payload))

    def drop(self, device: str) -> None:
        """Forget the answer of a device, if there is one."""
        self._replies.pop(device, None)

    def devices(self) -> frozenset[str]:
        """Return the devices whose answers are kept."""
        return frozenset(self._replies)

    def replies(self) -> list[Reply]:
        """Return the kept answers in the order of the devices' names."""
        return [self._replies[device] for device in sorted(self._replies)]

    def state(self) -> Payload:
        """Return the arrays from which `restore` gets the answers again."""
        replies = self.replies()
        arrays = {
            f"{ANSWER}.{i}.{name}": value
            for i, reply in enumerate(replies)
            for name, value in reply.payload.items()
        }
        examples = torch.tensor([reply.examples for reply in replies], dtype=torch.int64)
        return {DEVICES: names_to_tensor([reply.device for reply in replies]), EXAMPLES: examples, **arrays}

    def restore(self, state: Payload) -> None:
        """Replace all answers by those of a state."""
        found = zip(names_from_tensor(state[DEVICES]), state[EXAMPLES].tolist(), strict=True)
        self._replies = {
            device: Reply(device, examples, _of(state, f"{ANSWER}.{i}."))
            for i, (device, examples) in enumerate(found)
        }


def _of(state: Payload, prefix: str) -> Payload:
    return {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}
