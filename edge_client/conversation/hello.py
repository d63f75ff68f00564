"""The hello that a device sends when it is ready for work, and the plan that the coordinator sends back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import RunEntry
from protofleet.methods.contract.plan import Plan, read_plan
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.class_names import difference, digest_of, packed
from protofleet.protocol.wire.messages import NO_ANSWER, Hello


class HelloSender:
    """The sender of hellos, which sends long texts only once.

    The first hello on each connection and the first hello to a restarted coordinator have all class names and the
    text about the machine. Later hellos have only the hash of the class names, and the version of the software.
    """

    def __init__(
        self, link: DeviceLink, data: Splits, state: DeviceState, software: str, about: str = "",
        complete: Callable[[Hello, str, RunEntry], Hello] = lambda hello, run, saved: hello,
    ) -> None:  # fmt: skip
        """Create a sender; `complete` adds to each hello what the coordinator of several runs needs."""
        self._complete = complete
        self._link, self._data, self._state, self._software = link, data, state, software
        self._about = about or software  # text about the software and the machine
        # Epoch of the coordinator that got the last hello, or -1. If the present coordinator has another epoch, the
        # next hello has all class names, unless they do not fit into the message.
        self._epoch_with_names = -1
        # True if the last hello had only the hash of the class names, although the names would fit into the message.
        self.by_hash = False

    def send(self, plan: Plan | None) -> None:
        names, link = self._data.names, self._link
        in_full = self._epoch_with_names != link.epoch and link.fits_in_message(packed(names))
        self.by_hash = bool(names) and not in_full and link.fits_in_message(packed(names))
        software = self._about if in_full else self._software
        link.send(self._hello(plan, software, in_full))
        self._epoch_with_names = link.epoch

    def send_proof(self, plan: Plan | None) -> None:
        """Send a hello with the newest state of the coordinator that has the highest epoch."""
        hello = self._hello(plan, self._software, in_full=False)
        self._link.send(replace(hello, last_state=self._link.proof.frame))

    def _hello(self, plan: Plan | None, software: str, in_full: bool) -> Hello:
        link, saved = self._link, self._state.saved
        hello = hello_of(link.me.name, software, self._data, plan, saved, in_full)
        return self._complete(hello, link.run, saved)

    def name_classes_in_full(self) -> None:
        """Put all class names in full into the next hello.

        Call this after a new connection, and after a refusal whose reason may be the class names. If the next
        hello has all names, the next refusal can show the device's list and the run's list.
        """
        self._epoch_with_names = -1


def hello_of(
    name: str, software: str, data: Splits, plan: Plan | None, saved: RunEntry, in_full: bool = False
) -> Hello:
    """Return the hello of a device.

    The hello has the number of samples of each class only if the plan's method needs these numbers. The hello has
    the device's progress only if `plan` is not None. If `in_full` is true, the hello has all class names;
    otherwise it has only their hash.
    """
    counts: tuple[int, ...] = ()
    if plan and plan.variant.needs_counts:
        counts = tuple(data.train.y.bincount(minlength=data.classes).tolist())
    round, phase, base = last_answer(saved) if plan else (0, "", b"")
    return Hello(
        device=name,
        classes=data.classes,
        examples=len(data.train.y),
        domain=data.domain,
        software=software,
        plan=plan.digest if plan else b"",
        counts=counts,
        holds=tuple(
            bytes.fromhex(one) for one in dict.fromkeys((saved.broadcast, *saved.references.values())) if one
        ),
        round=round,
        phase=phase,
        base=base,
        can=forms.DEVICE_FORMS,
        names=data.names if in_full else (),
        names_hash=digest_of(data.names) if data.names and not in_full else b"",
    )


def last_answer(saved: RunEntry) -> tuple[int, str, bytes]:
    """Return the round, the phase and the base of the last update; the base is the hash of its broadcast."""
    if not saved.answers:
        return 0, NO_ANSWER, b""
    last = saved.answers[-1]
    return last.round, last.phase, bytes.fromhex(last.base)


def plan_for(
    data: Splits, text: bytes, names: tuple[str, ...] = (), plugins: PlugIns | None = None
) -> Plan:  # fmt: skip
    """Return the plan of the run, or raise SettingsError if this device cannot follow it.

    The device cannot follow a plan that is invalid, that does not fit its data, or that names a plug-in which
    the device does not allow. `names` are the names of the run's classes.
    """
    plan = read_plan(text, plugins)
    plan.demand_fit()
    if plan.classes != data.classes:
        raise SettingsError(
            f"the number of classes is {plan.classes} in the run, but in this device's data it is {data.classes}"
        )
    if problem := difference("this device's data", data.names, "the run", names):
        raise SettingsError(f"the classes of this device have other names: {problem}")
    return plan
