"""Implement `protofleet.testing.simulate`: run a method's halves in this process, for tests and notebooks.

There is no broker, no clock and no settings file. The messages of the halves are still encoded as bytes, each update
is checked against its task, and devices measure the same values as in a run. The results are the same as with
`protofleet run` on the same data. `protofleet check` tests a method with a faulty network and with crashes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TypeAlias

import torch

from protofleet.edge_client.data.own import Checked, Data
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shard, TensorSamples
from protofleet.edge_client.trainer.job import LocalJob
from protofleet.lab.api.errors import public_errors
from protofleet.lab.api.experiments import plain
from protofleet.methods.contract.base import Ask, ClientHalf, Member, Method, Reply, ServerHalf
from protofleet.methods.contract.bridge import LazyPayload, to_numpy, to_torch
from protofleet.methods.contract.catalog import load
from protofleet.methods.contract.given import ask_of, first_ask, round_of
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.torch_setup import one_thread
from protofleet.methods.nets.base import Net, initialised_from
from protofleet.methods.nets.catalog import Recipe
from protofleet.methods.plugins import file
from protofleet.methods.plugins.found import demand_type, object_of
from protofleet.protocol.settings.bounds import Rounds, Seed
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.settings.reader import SettingsError, decode
from protofleet.protocol.wire.arrays import Body, encode
from protofleet.protocol.wire.messages import Arrays
from protofleet.protocol.wire.names import EVALUATE
from protofleet.runtime.command.errors import RunError

OWN: Final = "own"  # The method's name in the plan if `method` is an object without a name.
# Function that gets device, round, phase, broadcast, answer, and number of samples of an exchange.
Tap: TypeAlias = Callable[[str, int, str, Arrays, Arrays, int], None]
ANY_SAMPLES: Final = "mlp"  # The network's name in the plan if `network` is an object.


@dataclass(frozen=True)
class OwnPlan(Plan):
    """A plan whose method or network may be an object of this process, in place of a name from a catalog."""

    own: Method | None = None
    recipe: Recipe | None = None

    def load(self) -> Method:
        return self.own or super().load()

    def model(self, network: Network | None = None) -> Net:
        if self.recipe is None:
            return super().model(network)
        with initialised_from(self.seed):
            return self.recipe.make(self.input_shape.axes, self.classes, None)


@dataclass(frozen=True)
class SimulatedRound:
    """A round of a simulation."""

    number: int
    # Accuracy on each device's test samples, by view and then by device, as in a round of a run.
    accuracy: Mapping[str, Mapping[str, float]]
    bytes_up: int  # Bytes of arrays that all devices sent.
    bytes_down: int  # Bytes of arrays that were sent to all devices.


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation. The halves of the method have their state after the last round."""

    rounds: Sequence[SimulatedRound]
    final: Mapping[str, Mapping[str, float]]  # Accuracy after the last round, by view and then by device.
    view: str  # The view that the method's paper reports, for example "global".
    server: ServerHalf
    clients: Mapping[str, ClientHalf] = field(repr=False)

    @property
    def accuracy(self) -> float:
        """Return the mean accuracy over the devices after the last round, with the same weight for each device."""
        return fmean(self.final[self.view].values())


def simulate(
    method: Method | str | Path,
    data: Mapping[str, Data],
    *,
    rounds: int = 3,
    settings: Mapping[str, Any] | None = None,
    network: str | Recipe = "mlp",
    seed: int = 0,
    reboots: bool = False,
) -> Simulated:
    """Run a method in this process on the data of some devices.

    `method` is an object, a name, or the path of a file. `settings` has the keys of the table [method] except
    `name`. `network` is a name or a result of `network(...)`.

    With `reboots`, every half is built again from its `state()` before each round. The results must be the
    same as without `reboots`. If an update or a state is refused, a RunError is raised, and its message is
    the reason. torch uses one thread, so the results do not depend on the number of cores.
    """
    with public_errors(), one_thread():
        require_kinds(method, data, settings or {}, network)
        decode(Asked, plain({"rounds": rounds, "seed": seed}))
        known = {name: device_data(name, of) for name, of in data.items()}
        plan = plan_of(method, known, rounds, dict(settings or {}), network, seed)
        return Federation(plan, known, reboots).run()


@dataclass(frozen=True)
class Asked:
    rounds: Rounds
    seed: Seed


def require_kinds(*given: object) -> None:
    kinds = {
        "method": (Method, str, Path), "data": (Mapping,), "settings": (Mapping,), "network": (str, Recipe),
    }  # fmt: skip
    for value, (name, wanted) in zip(given, kinds.items(), strict=True):
        if not isinstance(value, wanted):
            words = " or ".join(kind.__name__ for kind in wanted)
            raise SettingsError(f"{name} is {type(value).__name__}, it must be {words}")


def plan_of(
    method: Method | str | Path, data: Mapping[str, Shard], rounds: int, settings: dict[str, Any],
    network: str | Recipe, seed: int,
) -> OwnPlan:  # fmt: skip
    if not data:
        raise SettingsError(
            "data is empty; give the data of one or more devices:  {'device-1': Data(...), ...}"
        )
    first, of = next(iter(data.items()))
    if odd := [
        name for name, one in data.items() if shape_of(one) != shape_of(of) or one.classes != of.classes
    ]:
        raise SettingsError(
            f"{odd[0]} has samples of the shape {shape_of(data[odd[0]])} and {data[odd[0]].classes} classes, but "
            f"{first} has samples of the shape {shape_of(of)} and {of.classes} classes; the shape and the number of "
            "classes must be the same on all devices"
        )
    name, own = method_of(method)
    recipe = network if isinstance(network, Recipe) else None
    named = decode(Network, {"name": network if isinstance(network, str) else ANY_SAMPLES})
    shape = input_shape(shape_of(of)).settings()
    try:
        plan = OwnPlan(
            name, of.classes, rounds, seed, network=named, hyper=settings, own=own, recipe=recipe, **shape
        )
        plan.demand_fit()
        plan.demand_fleet_fit(len(data))
        demand_known_domains(plan, {name: of.domain for name, of in data.items()})
        return plan
    except ValueError as error:  # For example, the network cannot take samples of that shape.
        raise SettingsError(str(error)) from None


def demand_known_domains(plan: Plan, domains: Mapping[str, str]) -> None:
    for name, domain in domains.items():
        if problem := plan.domain_misfit(domain):
            raise SettingsError(f"the device {name} cannot take part: {problem}")


def method_of(method: Method | str | Path) -> tuple[str, Method]:
    """Return the name that the plan has for the method, and the method itself."""
    if isinstance(method, Method):
        return OWN, method
    if isinstance(method, Path) or method.endswith(".py"):
        source, module = file.from_file(Path(method), allowed=None)
        found = object_of("method", module)
        demand_type(found, Method, "method", str(source.path))
        return source.path.stem, found
    try:
        return method, load(method)
    except LookupError as error:
        raise SettingsError(str(error).strip("\"'")) from None


def shape_of(data: Shard) -> tuple[int, ...]:
    return tuple(data.train.x.shape[1:])


def input_shape(shape: tuple[int, ...]) -> InputShape:
    try:
        return InputShape(shape)
    except ValueError as error:
        raise SettingsError(f"of samples, {error}") from None


def device_data(name: str, data: Data) -> Shard:
    """Check the data of a device and scale them, in the same way as a run with `data.file` does."""
    if not isinstance(data, Data):
        raise SettingsError(
            f"the data of {name} are {type(data).__name__}, they must be Data(train, test, classes)"
        )
    shape = tuple(getattr(data.train[0], "shape", ())[1:]) if isinstance(data.train, tuple) else ()
    splits = Checked(name, data, DataSettings(file=name, **input_shape(shape).settings())).splits()
    train, validation, test = (
        TensorSamples(*pair) for pair in (splits.train, splits.validation, splits.test)
    )
    return Shard(
        data.domain or name,
        splits.classes,
        train,
        validation,
        test,
        splits.names,
        splits.scale,
        splits.pixels,
    )


class Federation:
    """The halves of a method on the data of some devices, without a network.

    `tap` gets each answer and its broadcast: device, round, phase, broadcast, answer, and number of samples.
    """

    def __init__(self, plan: Plan, data: Mapping[str, Shard], reboots: bool, tap: Tap | None = None) -> None:
        self._plan, self._data, self._reboots = plan, dict(sorted(data.items())), reboots
        self._tap = tap
        self._members = [
            Member(name, len(of.train.y), self._counts(of), of.domain) for name, of in self._data.items()
        ]
        self._server = plan.server_half()
        self._jobs = {name: self._job(name) for name in self._data}
        self._metrics: dict[str, dict[str, float]] = {}
        self._bytes_up = self._bytes_down = 0

    def run(self) -> Simulated:
        rounds = self.train()
        if reason := self._server.lacking():
            raise SettingsError(f"{self._plan.method}: {reason}")
        self._begin(len(rounds) + 1, self._members)
        for name in self._data:
            asked = ask_of(self._server, Ask("evaluate", self._server.payload()))
            self._answer(name, len(rounds) + 1, asked)
        return Simulated(rounds, self._accuracy(), self._plan.variant.reports, self._server, self.halves)

    def train(self) -> list[SimulatedRound]:
        """Conduct all rounds, without the evaluation after the last one."""
        rounds = [self._round(1)]
        for number in range(2, self._plan.rounds + 1):
            if self._members and not self._asked():
                break  # The server half keeps the answers of all devices.
            rounds.append(self._round(number))
        return rounds

    @property
    def halves(self) -> dict[str, ClientHalf]:
        """Return the client half of each device."""
        return {name: job.half for name, job in self._jobs.items()}

    @property
    def counts(self) -> dict[str, tuple[int, ...]]:
        """Return the numbers of samples of each class that devices state, if the method needs them."""
        return {member.device: member.counts for member in self._members if member.counts}

    def _asked(self) -> list[Member]:
        """Return the devices whose answers the server half does not keep."""
        kept = set(self._server.answered())
        return [member for member in self._members if member.device not in kept]

    def _begin(self, number: int, members: Sequence[Member]) -> None:
        self._server.fleet = len(self._members)
        self._server.begin(number, members)

    def _round(self, number: int) -> SimulatedRound:
        if self._reboots:
            self._reboot()
        self._metrics, self._bytes_up, self._bytes_down = {}, 0, 0
        members = self._asked()
        self._begin(number, members)
        asking = round_of(self._server)
        ask: Ask | None = first_ask(self._server, asking)
        while ask is not None:
            replies = [self._reply(member, number, ask) for member in members]
            try:
                ask = ask_of(self._server, asking.send(replies))
            except StopIteration:
                ask = None
        self._check_state(number)
        return SimulatedRound(number, self._accuracy(), self._bytes_up, self._bytes_down)

    def _reply(self, member: Member, number: int, ask: Ask) -> Reply:
        answer = self._answer(member.device, number, ask)
        if self._tap is not None:
            self._tap(
                member.device, number, ask.phase, crossed(to_numpy(ask.payload)), answer, member.examples
            )
        payload = LazyPayload(answer)
        if problem := ask.problem_with(payload, member.examples):
            raise RunError(
                f"the update of {member.device} to {ask.phase} in round {number} is refused: {problem.message}"
            )
        self._bytes_up += size(answer)
        return Reply(member.device, member.examples, payload)

    def _answer(self, device: str, number: int, ask: Ask) -> Arrays:
        sent = crossed(to_numpy(ask.payload))
        self._bytes_down += size(sent)
        answer, metrics = self._jobs[device].run(ask.phase, number, sent)
        # A phase after the training measures nothing, and must not delete what the training has measured.
        earlier = {} if ask.phase == EVALUATE else self._metrics.get(device, {})
        self._metrics[device] = {**earlier, **metrics}
        return crossed(answer)

    def _accuracy(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for device, metrics in self._metrics.items():
            for key, value in metrics.items():
                if key.startswith("accuracy.test."):
                    found.setdefault(key.removeprefix("accuracy.test."), {})[device] = value
        return found

    def _check_state(self, number: int) -> None:
        for name, value in self._server.state().items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise RunError(f"{name} in the state of the server half is not finite after round {number}")

    def _reboot(self) -> None:
        """Build each half again from its encoded state, as after a restart from files."""
        kept = to_torch(crossed(to_numpy(self._server.state())))
        self._server = self._plan.server_half()
        self._server.restore(kept)
        for name, job in self._jobs.items():
            self._jobs[name] = self._job(name)
            self._jobs[name].restore(crossed(job.state()))

    def _job(self, name: str) -> LocalJob:
        data = self._data[name]
        validation = data.validation if len(data.validation.y) else None
        half = self._plan.client_half(data.train, name, validation=validation)
        return LocalJob(half, data, self._plan.variant.reports)

    def _counts(self, data: Shard) -> tuple[int, ...]:
        if not self._plan.variant.needs_counts:
            return ()
        return tuple(torch.bincount(data.train.y, minlength=data.classes).tolist())


def crossed(arrays: Arrays) -> Arrays:
    """Encode the arrays, decode the bytes, and return the arrays as a receiver gets them."""
    body = b"".join(bytes(piece) for piece in encode(arrays))
    return dict(Body(lambda start, stop: body[start:stop], len(body)))


def size(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())
