"""Every method of the package, through the wire, without naming one."""

import contextlib
import functools
from pathlib import Path

import pytest
from torch import nn

from protofleet import methods
from protofleet.coordinator.observe.measured import names_of
from protofleet.deploy.simulation.network import NetworkConditions
from protofleet.methods.contract.catalog import load, names
from tests.support.few_methods import SHAPES, of_each_shape
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import POLICY, assert_same, final_state, simulation

ROUGH = NetworkConditions(jitter=0.5, repeat=0.5)
LOSSY = NetworkConditions(jitter=0.3, loss=0.2)
HOME_OF_SHAPES = str(Path(__file__).parent.parent / "shapes")  # methods of a shape that no method has yet


@contextlib.contextmanager
def more_methods():
    """While it lasts: other tests of the same process know the real ones alone."""
    methods.__path__.append(HOME_OF_SHAPES)
    yield
    methods.__path__.remove(HOME_OF_SHAPES)


with more_methods():
    METHODS = names()
every_run = pytest.mark.parametrize("unbroken", of_each_shape(METHODS), indirect=True)


def every_run_and(name, first, *others):
    """All with the first; one method of each shape with all others, and the rest with one of them in turn."""
    longer = functools.partial(pytest.param, marks=pytest.mark.slow)
    found = [(method, first) if method in SHAPES else longer(method, first) for method in METHODS]
    for i, method in enumerate(METHODS):
        found += [longer(method, o) for o in (others if method in SHAPES else (others[i % len(others)],))]
    return pytest.mark.parametrize(("unbroken", name), found, indirect=["unbroken"])


@pytest.fixture(scope="module", autouse=True)
def shapes():
    with more_methods():
        yield


@pytest.fixture(scope="module", params=METHODS)
def unbroken(request, tmp_path_factory):
    """One quiet run of each method, to compare the others with."""
    return request.param, simulation(tmp_path_factory.mktemp(request.param), request.param).run()


def accuracies(run, view):
    return [agent.state.saved.answers[-1].metrics[f"accuracy.test.{view}"] for agent in run.agents.values()]


def test_learns(unbroken):
    method, run = unbroken
    assert run.service.finished and run.service.run.machine.round == POLICY.rounds + 2
    assert min(accuracies(run, load(method).reports)) > 2 / 3  # twice chance


def test_all_that_devices_measure_is_of_views_that_the_method_has(unbroken):
    """A coordinator passes over others: one device could say as many as it likes."""
    _, run = unbroken
    names = names_of(run.service.run.plan.variant.views)
    for agent in run.agents.values():
        said = {name for answer in agent.state.saved.answers for name in answer.metrics}
        assert {name for name in said if not name.startswith("seconds.")} <= names


def test_a_devices_limits_are_told_of_every_network_that_it_holds(unbroken):
    """Also of those that have come."""
    _, run = unbroken
    for agent in run.agents.values():
        half = agent.run.job.half
        told = {p for network in half.networks() for p in network.parameters()}
        held = {name: part for name, part in vars(half).items() if isinstance(part, nn.Module)}
        assert not [name for name, part in held.items() if not told.issuperset(part.parameters())]


@every_run
def test_repeats_and_reordering_change_nothing_but_time(unbroken, tmp_path):
    method, run = unbroken
    assert_same(run, simulation(tmp_path, method, ROUGH, seed=3).run())


@every_run_and("seed", 0, 1, 2)
def test_finishes_with_the_same_bits_when_frames_are_lost(unbroken, tmp_path, seed):
    method, run = unbroken
    patient = {"patience_seconds": 3000.0, "grace_seconds": 1000.0}
    policy = RunPolicy(**{**vars_of(POLICY), **patient})
    lossy = simulation(tmp_path, method, LOSSY, seed, policy).run()
    assert lossy.service.finished
    assert_same(run, lossy)


@every_run_and("when", 2.0, 0.9, 1.3, 3.1)
def test_a_crashed_coordinator_ends_where_an_unbroken_one_does(unbroken, tmp_path, when):
    method, run = unbroken
    broken = simulation(tmp_path, method)
    broken.clock.call_at(when, broken.boot_coordinator)
    broken.run()
    assert broken.service.finished and broken.boots == 2
    assert_same(run, broken)


@every_run_and("when", 2.0, 0.9, 1.3, 3.1)
def test_a_rebooted_device_gives_the_answer_it_would_have_given(unbroken, tmp_path, when):
    method, run = unbroken
    broken = simulation(tmp_path, method)

    def reboot():
        broken.kill("device-1")
        broken.clock.call_at(broken.clock.now + 1.0, lambda: broken.boot_device("device-1"))

    broken.clock.call_at(when, reboot)
    broken.run()
    assert broken.service.finished
    assert_same(run, broken)


def vars_of(policy):
    return {name: getattr(policy, name) for name in policy.__dataclass_fields__}


SPOILT = {
    "not finite": lambda v: v * float("nan"),
    "wrong shape": lambda v: v.flatten()[:1],
    "wrong type": lambda v: v.double(),
}


@pytest.mark.parametrize("fault", SPOILT)
@pytest.mark.parametrize("method", of_each_shape(METHODS))
def test_one_bad_device_cannot_stop_the_others(method, fault, tmp_path):
    policy = RunPolicy(rounds=2, quorum=2, cohort=3, patience_seconds=20.0, settle_seconds=0.5)
    run = simulation(tmp_path, method, policy=policy, build=Spoiler(SPOILT[fault]))
    run.run()
    assert run.service.finished
    state = final_state(run)
    assert all(v.isfinite().all() for name, v in state.items() if name.startswith("server"))
    sent = Spoiler.sent.pop(method, False)
    refused = run.agents["device-1"].link.meter.messages["down", "receipt", "accepted"]
    assert refused > 0 or not sent


class Spoiler:
    """Builds halves; that of device-1 spoils every floating-point array of its answers."""

    sent: dict[str, bool] = {}

    def __init__(self, spoil):
        self.spoil = spoil

    def __call__(self, device, plan, data):
        half = plan.client_half(data.train, device)
        if device == "device-1":
            honest = half.run

            def run(ask):
                answer = honest(ask)
                Spoiler.sent[plan.method] = any(v.is_floating_point() for v in answer.values())
                return {k: self.spoil(v) if v.is_floating_point() else v for k, v in answer.items()}

            half.run = run
        return half


def test_the_same_seed_is_the_same_history(tmp_path):
    a = simulation(tmp_path / "a", "fedavg", LOSSY, 3).run()
    b = simulation(tmp_path / "b", "fedavg", LOSSY, 3).run()
    assert a.clock.now == b.clock.now and a.broker.bytes_received == b.broker.bytes_received
    assert_same(a, b)


@pytest.mark.parametrize("method", of_each_shape(METHODS))
def test_bytes_are_the_same_at_both_ends_and_add_up(method, tmp_path):
    run = simulation(tmp_path, method).run()
    run.clock.run(lambda: False, run.clock.now + 10)  # let the last words arrive
    coordinator = run.meters["coordinator"]
    devices = [run.meters[d] for d in run.agents]
    up = sum((m.payload for m in devices), start=type(coordinator.payload)())
    for (direction, kind), size in up.items():
        if direction == "up":
            assert coordinator.payload["up", kind] == size
    assert (
        sum(coordinator.frames.values()) - coordinator.frames["up"] + sum(m.frames["up"] for m in devices)
        <= run.broker.bytes_received
    )
    wire = sum(n for (d, _), n in coordinator.wire.items() if d == "up")
    assert wire >= sum(n for (d, _), n in coordinator.payload.items() if d == "up")
