"""Real brokers on the loopback; a test without its broker is skipped, and fails under CI."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import queue
import signal
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

# Small operations on two threads take three times the CPU time, because the threads wait for each other in a loop.
# torch reads this when it is imported, also in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis  # Otherwise its plugin imports it at the very end, while threads of the tests still run.
import pytest

import protofleet.protocol
from protofleet.federation.brokers.local import LocalBroker
from protofleet.protocol.transport.address import BrokerAddress, BrokerError
from protofleet.protocol.transport.base import Arrived, Connected, Denied, Disconnected, Item
from protofleet.protocol.transport.mqtt import Mqtt
from tests.containers.engine import Engine, NoEngine, running_engine
from tests.support.open_files import open_files, open_handles

HERE = Path(__file__).parent
ROOT = HERE.parent
if Path(protofleet.protocol.__file__).parent.parent != ROOT:
    raise SystemExit(
        f"protofleet.protocol is {protofleet.protocol.__file__}, not of this checkout {ROOT}; "
        "run these tests by its own environment (make .venv/.dev, then .venv/bin/python -m pytest)"
    )

# The time of one example is not checked in any room, because it depends on the load of the machine.
hypothesis.settings.register_profile(
    "unhurried",
    hypothesis.settings.default,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("unhurried")

# A shell without job control starts background jobs with SIGINT ignored, and our children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Rooms of tests/ in which every test starts real processes and waits for their time-outs.
SLOW_ROOMS = ("tests/hostile/",)
QUICK_SECONDS = 10.0  # The time limit of a test in `make test`, on a machine that also does other work.
# The limit of open files of a test process. Raw devices run paho's loop, which uses select(): 1,024 files at most.
OPEN_FILES = 256
PATIENCE = 20.0  # Seconds that a loaded machine may take for something that usually takes milliseconds.
Kind = TypeVar("Kind", Arrived, Connected, Denied, Disconnected)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep collected tests out of each later garbage collection: there are many, and they live to the end."""
    gc.disable()
    try:
        if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            import_tests(os.environ.get("PYTEST_XDIST_WORKER", ""))
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def import_tests(worker: str) -> None:
    """Import all test modules; each process begins with another module.

    In a new checkout, pytest compiles each test module and stores the result. With the same order in all processes,
    each of them would compile all modules at the same time as the others, which takes ten seconds in each process.
    """
    if not worker:
        return
    modules = [path.relative_to(ROOT).with_suffix("") for path in sorted(HERE.rglob("test_*.py"))]
    part, parts = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for name in beginning_at(part, parts, [".".join(path.parts) for path in modules]):
        # The collection imports a module again after an error, and reports the error.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def beginning_at(part: int, parts: int, names: list[str]) -> list[str]:
    """Return all names in order, rotated so that they begin at this part of them."""
    first = len(names) * part // parts
    return names[first:] + names[:first]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW_ROOMS):
            item.add_marker(pytest.mark.slow)
    items.sort(key=own_limit, reverse=True)
    items[:] = dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def dealt(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return the tests in an order in which each process begins with slow tests and ends with quick ones.

    The processes get parts of equal length. If the last tests were slow, most processes would have ended before them.
    """
    if processes == 1:
        return items
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    return [
        item for part in range(processes) for kind in (slow, quick) for item in share(kind, part, processes)
    ]


def share(items: list[pytest.Item], part: int, parts: int) -> list[pytest.Item]:
    return items[len(items) * part // parts : len(items) * (part + 1) // parts]


def own_limit(item: pytest.Item) -> float:
    """Return the time limit that a test sets for itself, or 0.

    Of the slow tests, those with long limits run first, because one of them at the end of the suite would keep a
    single process busy for minutes while the other processes have ended.
    """
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0


class Stopwatch:
    """A pytest plug-in that prints the tests that take more than QUICK_SECONDS in `make test`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not {"slow", "containers", "engines"} & report.keywords.keys():
            self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test, seconds in sorted(self.seconds.items(), key=lambda one: -one[1]):
            if seconds > QUICK_SECONDS:
                terminalreporter.write_line(
                    f"{test} took {seconds:.1f} s, and tests of `make test` at most {QUICK_SECONDS:.0f} s: "
                    "make it shorter, or mark it slow, for `make test-all` alone"
                )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Stopwatch())


class Peer:
    """An `Mqtt` and its inbox; a test waits for an item, and never for a fixed time."""

    def __init__(self, name: str, address: BrokerAddress, **options: Any) -> None:
        self.name, self.inbox = name, queue.SimpleQueue[Item]()
        options.setdefault("retry_seconds", (0.02, 0.2))
        will, returns = options.pop("will", None), options.pop("returns", lambda: False)
        self.mqtt = Mqtt(name, address, self.inbox, **options)
        self.mqtt.connect(will, returns)

    def next(self, kind: type[Kind], check: Callable[[Kind], bool] = lambda item: True) -> Kind:
        """Return the next item of this kind that passes the check; drop the items before it."""
        deadline = time.monotonic() + PATIENCE
        seen: list[Item] = []
        while (left := deadline - time.monotonic()) > 0:
            try:
                item = self.inbox.get(timeout=left)
            except queue.Empty:
                break
            if isinstance(item, kind) and check(item):
                return item
            seen.append(item)
        raise AssertionError(f"{self.name} waited {PATIENCE} s for {kind.__name__}; it saw {seen[-5:]}")

    def frame(self, topic: str) -> bytes:
        return self.next(Arrived, lambda item: item.topic == topic).frame

    def ready(self) -> Peer:
        """Wait until the peer is connected and its subscriptions are active, and return the peer.

        The peer waits for its own message on a new topic. Brokers work in order, so earlier subscriptions are then
        active too.
        """
        self.next(Connected)
        echo = f"echo/{uuid.uuid4().hex}"
        self.mqtt.subscribe(echo)
        self.mqtt.publish(echo, b"")
        self.frame(echo)
        self.mqtt.unsubscribe(echo)
        return self


def missing(error: BrokerError) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(str(error))
    pytest.skip(str(error))


@pytest.fixture(autouse=True)
def umask_of_its_own() -> Iterator[None]:
    """Restore the umask: our commands set it when they run inside a test, and later tests would inherit it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def few_open_files(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail when a test leaves too many files open.

    With too many open files, raw devices in a later test never get an answer, and no message says why.
    """
    yield
    if open_handles() > OPEN_FILES:
        # The arguments of a log line may be errors, whose tracebacks keep all objects of a party that was killed.
        for phase in ("setup", "call"):
            caplog.get_records(phase).clear()
        gc.collect()  # Objects in reference cycles close their files here.
        left = open_files()
        assert len(left) <= OPEN_FILES, f"{len(left)} files are open: {' '.join(sorted(left)[-20:])}"


@pytest.fixture(scope="session")
def start_mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LocalBroker]]:
    """Return a function that starts a further Mosquitto with its own settings; the session stops them all."""
    started: list[LocalBroker] = []

    def start(*more: str, **options: Any) -> LocalBroker:
        folder: Path = tmp_path_factory.mktemp("mosquitto")
        try:
            broker = LocalBroker(folder, "mosquitto", extra_lines=more, **options)
        except BrokerError as error:
            missing(error)
        broker.start()
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture(scope="session")
def broker(start_mosquitto: Callable[..., LocalBroker]) -> LocalBroker:
    return start_mosquitto(sys_seconds=1)


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    try:
        broker = LocalBroker(tmp_path_factory.mktemp("embedded"), "embedded")
    except BrokerError as error:
        missing(error)
    with broker:
        yield broker


@pytest.fixture(params=["mosquitto", "embedded"])
def any_broker(request: pytest.FixtureRequest) -> LocalBroker:
    found: LocalBroker = request.getfixturevalue("broker" if request.param == "mosquitto" else "embedded")
    return found


@pytest.fixture
def federation() -> str:
    """Return a federation name that no other test uses, so that tests can share a broker at the same time."""
    return f"f{uuid.uuid4().hex[:12]}"


@pytest.fixture
def peer(federation: str) -> Iterator[Callable[..., Peer]]:
    """Return a function that makes peers with client ids of this test; close them after the test."""
    peers: list[Peer] = []

    def make(name: str, address: BrokerAddress, **options: Any) -> Peer:
        peers.append(Peer(f"{federation}.{name}", address, **options))
        return peers[-1]

    yield make
    for made in peers:
        made.mqtt.close()


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Return a container engine with base images; skip the tests that need one where none can run."""
    try:
        with running_engine() as found:
            yield found
    except NoEngine as why:
        pytest.skip(f"no containers: {why}")
