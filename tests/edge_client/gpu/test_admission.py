"""Devices share a GPU: one peak is measured, others are admitted by it, and no device ends for lack of memory."""

import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
import weakref

import pytest

from protofleet.edge_client.gpu.admission import GpuFullError, Work
from protofleet.edge_client.gpu.turns import SPARE, Turns, own_folder
from tests.edge_client.gpu.simulated import GpuProcess, MiB, SimulatedGpu

PATIENCE = 20.0
TRAIN = Work("train", "train", 1000)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "turns").mkdir()
    return tmp_path


def quickly():
    time.sleep(0.001)  # the pause between two looks while it waits


def training(process, size=100 * MiB, inside=lambda: None):
    """Return a piece of work that holds `size` bytes at once, in two blocks, while it calls `inside`."""

    def do():
        with process.gpu.block(size // 2), process.gpu.block(size // 2):
            inside()
        return "learned"

    return do


def measured(folder, **options):
    """Return a process that has measured once how much memory training takes."""
    process = GpuProcess.on(folder, quickly, **options)
    assert process.admission.run(TRAIN, training(process)) == "learned"
    return process


def together(*calls):
    """Make each call on a separate thread, and return the results or raise the error of a call."""
    found = queue.SimpleQueue()

    def call(number, do):
        try:
            found.put((number, do()))
        except Exception as error:  # noqa: BLE001 - raised below
            found.put((number, error))

    threads = [threading.Thread(target=call, args=pair, daemon=True) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    results = dict(found.get(timeout=PATIENCE) for _ in calls)
    for result in results.values():
        if isinstance(result, Exception):
            raise result
    return [results[number] for number in range(len(calls))]


def test_two_processes_work_at_once_if_the_gpu_has_memory_for_both(folder):
    processes = [measured(folder), measured(folder)]
    meeting = threading.Barrier(2, timeout=PATIENCE)
    calls = [
        lambda one=one: one.admission.run(TRAIN, training(one, inside=meeting.wait)) for one in processes
    ]
    assert together(*calls) == ["learned"] * 2


class AtOnce:
    """A counter of the pieces of work that run now, and of the most that ran at once."""

    def __init__(self):
        self.now = self.most = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one_more(self):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        yield
        with self._lock:
            self.now -= 1


@pytest.mark.parametrize(("room", "most"), [(0, 1), (1, 2), (2, 3)])
def test_only_as_many_processes_work_at_once_as_the_memory_allows(folder, room, most):
    contexts = 4 * 100 * MiB
    total = contexts + 100 * MiB + room * 100 * MiB + (SPARE if room else 0)
    processes = [measured(folder, total=total) for _ in range(4)]
    at_once = AtOnce()

    def work(process):
        for _ in range(10):
            with_count = training(process, inside=lambda: enter(at_once))
            process.admission.run(TRAIN, with_count)

    together(*[lambda one=one: work(one) for one in processes])
    assert at_once.most <= most
    assert [one.admission.usage.out_of_memory for one in processes] == [0] * 4


def enter(at_once):
    with at_once.one_more():
        quickly()


def test_a_hundred_devices_in_four_processes_share_a_gpu_without_running_out_of_memory(folder):
    """The GPU has room for two peaks, and each device has data of another size."""
    total = 4 * 100 * MiB + SPARE + 450 * MiB
    processes = [GpuProcess.on(folder, quickly, total=total) for _ in range(4)]
    answers = []

    def serve(process, number):
        for phase in ("prototypes", "train"):
            for device in range(number, 100, 4):
                work = Work(phase, phase, 1000 + 10 * device)
                size = (200 if phase == "train" else 20) * MiB * work.data_bytes // 2000
                answers.append(process.admission.run(work, training(process, size)))

    together(*[lambda one=one, number=number: serve(one, number) for number, one in enumerate(processes)])
    assert answers == ["learned"] * 200
    assert [one.admission.usage.out_of_memory for one in processes] == [0] * 4
    assert [one.gpu.reserved_bytes() for one in processes] == [0] * 4


def test_the_first_work_of_each_kind_is_measured_alone(folder):
    """The second device's work has no peak yet, so it waits until the first has ended, although there is room."""
    refused, order, begun = threading.Event(), [], threading.Event()
    first, second = measured(folder), GpuProcess.on(folder, refused.set)

    def long_work():
        begun.set()
        assert refused.wait(PATIENCE)
        order.append("first")

    works = in_background(first, training(first, inside=long_work))
    assert begun.wait(PATIENCE)
    waits = in_background(second, training(second, inside=lambda: order.append("second")))
    works.join(PATIENCE)
    waits.join(PATIENCE)
    assert order == ["first", "second"]


def in_background(process, do):
    thread = threading.Thread(target=process.admission.run, args=(TRAIN, do), daemon=True)
    thread.start()
    return thread


def until(holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        quickly()


def test_a_device_with_more_data_needs_more_free_memory_for_admission(folder):
    """Its peak does not fit next to the other one, although the peak of the measured device would."""
    total = 2 * 100 * MiB + SPARE + 250 * MiB
    first, second = measured(folder, total=total), measured(folder, total=total)
    large = Work("train", "train", 2000)
    at_once = AtOnce()
    together(
        lambda: [
            first.admission.run(TRAIN, training(first, inside=lambda: enter(at_once))) for _ in range(20)
        ],
        lambda: [
            second.admission.run(large, training(second, 200 * MiB, inside=lambda: enter(at_once)))
            for _ in range(20)
        ],
    )
    assert at_once.most == 1
    assert first.admission.usage.out_of_memory == second.admission.usage.out_of_memory == 0


def test_work_that_runs_out_of_memory_is_done_again_alone(folder, caplog):
    process = measured(folder, total=100 * MiB + 200 * MiB)
    sizes = [400 * MiB, 100 * MiB]  # another program has freed memory in between

    def do():
        return training(process, sizes.pop(0))()

    with caplog.at_level(logging.WARNING):
        assert process.admission.run(TRAIN, do) == "learned"
    assert process.admission.usage.out_of_memory == 1 and process.gpu.reserved_bytes() == 0
    (line,) = [record.getMessage() for record in caplog.records]
    assert (
        "train ran out of the GPU's memory" in line
        and "will be done again when no other device works" in line
    )


class Circle:
    """An object that refers to itself, so that only the garbage collector deletes it."""


def test_memory_in_reference_cycles_is_freed_after_work_runs_out_of_memory(folder):
    process = measured(folder, total=100 * MiB + 150 * MiB)
    sizes = [800 * MiB, MiB]

    def do():
        held = Circle()
        held.itself = held
        weakref.finalize(held, process.gpu.free, process.gpu.allocate(100 * MiB))
        return training(process, sizes.pop(0))()

    assert process.admission.run(TRAIN, do) == "learned"


def test_the_error_for_too_large_work_states_the_size_the_limit_and_a_fix(folder):
    process = GpuProcess.on(folder, quickly, total=400 * MiB)
    with pytest.raises(GpuFullError) as error:
        process.admission.run(TRAIN, training(process, 800 * MiB))
    message = str(error.value)
    assert "315 MB of the GPU's 419 MB" in message and "Tried to allocate 419430400" in message
    assert "devices.processes" in message and 'compute = "cpu"' in message
    assert process.admission.run(TRAIN, training(process)) == "learned", "the process can do other work"


def test_a_cuda_context_without_free_memory_raises_gpu_full_error(folder):
    process = GpuProcess.on(folder, quickly, total=50 * MiB)
    process.gpu.free_bytes = lambda: 0  # as a real GPU reports in this case
    with pytest.raises(GpuFullError, match="the 0 MB of the GPU's 52 MB"):
        process.admission.run(TRAIN, training(process))


def test_another_error_of_the_work_is_raised_and_ends_its_turn(folder):
    first, second = measured(folder), measured(folder)

    def wrong():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        first.admission.run(TRAIN, wrong)
    assert second.admission.run(Work("new", "new", 1), training(second)) == "learned"


def test_memory_that_stays_on_the_gpu_is_not_given_to_other_devices(folder):
    """A device alone in its process keeps its data on the GPU. The second has not used its promised memory yet."""
    total = 3 * 100 * MiB + SPARE + 250 * MiB
    first, second = measured(folder, total=total), measured(folder, total=total)
    refused, order, begun = threading.Event(), [], threading.Event()
    third = GpuProcess.on(folder, refused.set, total=total)
    third.admission.run(TRAIN, training(third))
    data = Work("data", "data", 1)
    first.admission.run(data, lambda: first.gpu.free(first.gpu.allocate(100 * MiB)))

    def long_work():
        begun.set()
        assert refused.wait(PATIENCE)
        training(second)()
        order.append("second")

    works = in_background(second, long_work)
    assert begun.wait(PATIENCE)
    first.admission.run(data, lambda: first.gpu.allocate(100 * MiB))
    waits = in_background(third, training(third, inside=lambda: order.append("third")))
    works.join(PATIENCE)
    waits.join(PATIENCE)
    assert order == ["second", "third"]
    assert third.admission.usage.out_of_memory == 0


def turns_of(folder):
    """Return the number of turns that are taken or waited for."""
    return len(list((folder / "turns" / "simulated").glob("*.turn")))


def test_a_process_killed_in_its_turn_does_not_block_the_others(folder):
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    child = context.Process(target=work_for_ever, args=(folder, begun))
    child.start()
    assert begun.wait(PATIENCE)
    waiting = GpuProcess.on(folder, quickly)
    thread = threading.Thread(target=lambda: waiting.admission.run(TRAIN, training(waiting)), daemon=True)
    thread.start()
    until(lambda: turns_of(folder) == 2)
    assert thread.is_alive()
    os.kill(child.pid, signal.SIGKILL)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    child.join(PATIENCE)
    assert waiting.gpu.free_bytes() == waiting.gpu.total - waiting.gpu.context


def work_for_ever(folder, begun):
    process = GpuProcess.on(folder, quickly)

    def inside():
        begun.set()
        threading.Event().wait()

    process.admission.run(TRAIN, training(process, inside=inside))


def test_a_small_request_does_not_overtake_an_earlier_large_one(folder):
    """Otherwise the device with the large request would wait for ever."""
    gpu = SimulatedGpu(folder)
    place = folder / "turns" / "order"
    with Turns(place, gpu).turn(None):
        pass
    order, threads, may_end = [], [], threading.Event()

    def ask(number, needs):
        def wait():
            with Turns(place, gpu, quickly).turn(needs):
                order.append(number)
                assert may_end.wait(PATIENCE)

        threads.append(threading.Thread(target=wait, daemon=True))
        threads[-1].start()
        until(lambda: len(list(place.glob("*.turn"))) == number)

    ask(1, 100 * MiB)
    until(lambda: order == [1])
    ask(2, 800 * MiB)
    ask(3, 1 * MiB)
    may_end.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert order == [1, 2, 3]


def test_a_turns_folder_behind_a_symlink_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "gpu").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="TMPDIR"):
        own_folder(tmp_path / "gpu" / "0")


def keeps(process, size):
    """Allocate a block that lives as long as the process, as cuBLAS's workspace does, in a much larger segment."""
    with process.gpu.block(size):
        pass
    return process.gpu.allocate(size // 100)


def test_the_peak_includes_work_that_fits_into_memory_reserved_before(folder):
    """A process that has computed something else before reserves nothing new for the work."""
    process = GpuProcess.on(folder, quickly)
    keeps(process, 200 * MiB)
    process.gpu.release_cache()
    reserved = process.gpu.reserved_bytes()
    assert reserved == 200 * MiB, "one small block keeps all of its segment"
    assert process.admission.run(TRAIN, training(process)) == "learned"
    assert process.gpu.reserved_bytes() == reserved
    assert process.admission.usage.peak_bytes == 100 * MiB


def test_admission_counts_the_memory_that_the_measured_work_took_from_the_pool(folder):
    """Each needs 400 MiB, and was measured while the pool of its process had them. 700 MiB are left for both."""
    processes, held = [GpuProcess.on(folder, quickly, total=900 * MiB) for _ in range(2)], []
    for process in processes:
        held.append(keeps(process, 410 * MiB))
        process.admission.run(TRAIN, training(process, 400 * MiB))
        process.gpu.free(held.pop())
        process.admission.run(Work("small", "small", 1), training(process, MiB))
    at_once = AtOnce()

    def work(process):
        for _ in range(5):
            process.admission.run(TRAIN, training(process, 400 * MiB, lambda: enter(at_once)))

    together(*[lambda one=one: work(one) for one in processes])
    assert [one.admission.usage.out_of_memory for one in processes] == [0, 0]
    assert at_once.most == 1
