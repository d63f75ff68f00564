"""Tests of every method of the package through the wire, without the name of any method."""

import contextlib
import functools
from pathlib import Path

import pytest

from protofleet import methods
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.lab.contract import methods as checks
from protofleet.lab.contract.halves import (
    late_replies_count_less,
    removed_devices_are_forgotten,
    replies_are_not_kept,
    rounds_without_answers_change_nothing,
    state_goes_round,
)
from protofleet.lab.contract.methods import LOSSY
from protofleet.lab.contract.small_classes import small_classes_are_not_sent
from protofleet.lab.contract.worlds import Subject
from protofleet.methods.contract.catalog import load, names
from tests.support.few_methods import FEW_STEPS, SHAPES, few_steps, of_each_shape, with_own_arrays
from tests.support.small_federation import assert_same, once_each, simulation

# The folder of methods of a shape that no other method has yet.
HOME_OF_SHAPES = str(Path(__file__).parent.parent / "shapes")


@contextlib.contextmanager
def more_methods():
    """Add the methods of tests/methods/shapes for the duration of a test; other tests see only the real methods."""
    methods.__path__.append(HOME_OF_SHAPES)
    yield
    methods.__path__.remove(HOME_OF_SHAPES)


with more_methods():
    METHODS = names()
    # The methods for tests of the wire, on which other methods with the same kinds of arrays look alike.
    ON_THE_WIRE = with_own_arrays(METHODS)
    # The methods whose server half keeps the answers of devices.
    KEEPERS = [name for name in METHODS if load(name).Server.keeps_answers]
    # The methods that send nothing about a class with fewer samples than a setting demands.
    CAREFUL = [name for name in METHODS if hasattr(load(name).Hyper(), "least_samples")]
every_run = pytest.mark.parametrize("unbroken", of_each_shape(ON_THE_WIRE), indirect=True)


def every_run_and(name, first, *others):
    """Parametrize tests by (method, run).

    All methods get the first run, and one method of each shape also gets all other runs.
    """
    longer = functools.partial(pytest.param, marks=pytest.mark.slow)
    found = [(method, first) if method in SHAPES else longer(method, first) for method in METHODS]
    found += [longer(method, other) for method in SHAPES for other in others]
    return pytest.mark.parametrize(("unbroken", name), found, indirect=["unbroken"])


@pytest.fixture(scope="module", autouse=True)
def shapes():
    with more_methods():
        yield


def runs(make):
    """Return a function that returns the run of a method without faults, which all tests of a process share."""

    def of(method):
        run = make(method).run()
        run.service.run.spool.close()  # Otherwise the runs of all methods would keep their databases open.
        return run

    return once_each(of)


@pytest.fixture(scope="module")
def learned_run(tmp_path_factory):
    return runs(lambda method: simulation(tmp_path_factory.mktemp(method), method, hyper={}))


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    return runs(lambda method: few_steps(method).simulation(tmp_path_factory.mktemp(method)))


# With this scope, pytest runs all tests of a method one after the other, so that few processes need the same run.
@pytest.fixture(scope="module", params=of_each_shape(METHODS))
def learned(request, learned_run):
    """Return (method, a run of it that learns)."""
    return request.param, learned_run(request.param)


@pytest.fixture(scope="module", params=of_each_shape(METHODS))
def unbroken(request, short_run):
    """Return (method, a run of it without faults and with few steps), with which tests compare other runs."""
    return few_steps(request.param), short_run(request.param)


def test_each_method_learns(learned):
    checks.learns(Subject(learned[0]), learned[1])


def test_devices_measure_only_the_views_that_the_method_has(learned):
    checks.measures_its_own_views(Subject(learned[0]), learned[1])


def test_a_half_lists_every_network_that_it_holds_for_the_limits_of_the_device(learned):
    checks.tells_all_its_networks(Subject(learned[0]), learned[1])


def test_a_half_predicts_the_same_scores_as_its_rule(learned):
    checks.predicts_by_its_rule(Subject(learned[0]), learned[1])


def test_an_exported_model_gives_the_same_scores_as_the_half_in_each_way_to_predict(learned, tmp_path):
    checks.exports_each_way(Subject(learned[0]), learned[1], tmp_path)


@every_run
def test_repeated_and_reordered_frames_change_nothing_but_the_time(unbroken, tmp_path):
    checks.repeats_change_nothing(*unbroken, tmp_path)


@pytest.mark.slow
@every_run
def test_a_lossless_codec_changes_no_bit(unbroken, tmp_path):
    checks.coding_without_loss_changes_nothing(*unbroken, tmp_path)


# Frames are sent again by code that all methods share, so one method of each shape is enough.
@pytest.mark.parametrize("unbroken", SHAPES, indirect=True)
@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_run_ends_with_the_same_bits_when_frames_are_lost(unbroken, tmp_path, seed):
    checks.lost_frames_change_nothing(*unbroken, tmp_path, seed)


@every_run_and("when", 2.0, 0.9, 1.3, 3.1)
def test_a_run_whose_coordinator_crashes_ends_with_the_same_bits(unbroken, tmp_path, when):
    checks.crashed_coordinator_changes_nothing(*unbroken, tmp_path, when)


@every_run_and("when", 2.0, 0.9, 1.3, 3.1)
def test_a_run_with_a_rebooted_device_ends_with_the_same_bits(unbroken, tmp_path, when):
    checks.rebooted_device_changes_nothing(*unbroken, tmp_path, when)


@pytest.mark.parametrize("fault", ["not finite", "wrong shape"])
@pytest.mark.parametrize("method", of_each_shape(ON_THE_WIRE))
def test_a_device_with_wrong_arrays_does_not_stop_the_other_devices(method, fault, tmp_path):
    checks.bad_device_stops_nobody(few_steps(method), tmp_path, fault)


# The types of arrays are compared in code that all methods share, so one method of each shape is enough.
@pytest.mark.parametrize("fault", checks.SPOILT.keys() - {"not finite", "wrong shape"})
@pytest.mark.parametrize("method", SHAPES)
def test_a_device_with_arrays_of_a_wrong_type_does_not_stop_the_other_devices(method, fault, tmp_path):
    checks.bad_device_stops_nobody(few_steps(method), tmp_path, fault)


@pytest.mark.parametrize("method", of_each_shape(METHODS))
def test_running_statistics_of_batch_norm_are_never_negative_or_refused(method, tmp_path):
    checks.network_with_batch_norm(few_steps(method), tmp_path)


@pytest.mark.parametrize("method", of_each_shape(METHODS))
def test_a_server_half_reads_no_array_of_a_reply_after_its_round(method):
    replies_are_not_kept(few_steps(method))


@pytest.mark.parametrize("method", of_each_shape(METHODS))
def test_a_half_that_is_restored_from_its_state_continues_with_the_same_bits(method):
    state_goes_round(few_steps(method))


@pytest.mark.parametrize("method", of_each_shape(CAREFUL))
def test_a_class_with_few_samples_is_not_sent(method):
    small_classes_are_not_sent(few_steps(method))


@pytest.mark.parametrize("method", of_each_shape(name for name in CAREFUL if name not in KEEPERS))
def test_a_run_continues_when_no_device_has_a_class_with_enough_samples(method, tmp_path):
    subject = Subject(method, hyper={**FEW_STEPS, "least_samples": 1000})
    run, file = subject.simulation(tmp_path), RoundsFile(tmp_path / "rounds.jsonl")
    keep_journal(run.service.run, [file])
    run.run()
    assert [len(line["participants"]) for line in file.records[:-1]] == [3, 3, 3]


@pytest.mark.parametrize("method", [name for name in METHODS if load(name).buffered])
def test_a_late_reply_has_less_weight_in_each_method_with_buffered_rounds(method):
    late_replies_count_less(few_steps(method))


@pytest.mark.parametrize("method", of_each_shape(KEEPERS))
def test_a_removed_device_is_forgotten_and_a_round_without_answers_changes_nothing(method):
    removed_devices_are_forgotten(Subject(method))
    rounds_without_answers_change_nothing(Subject(method))


def test_two_runs_with_the_same_seed_are_equal(tmp_path):
    a = simulation(tmp_path / "a", "fedavg", LOSSY, 3).run()
    b = simulation(tmp_path / "b", "fedavg", LOSSY, 3).run()
    assert a.clock.now == b.clock.now and a.broker.bytes_received == b.broker.bytes_received
    assert_same(a, b)


@pytest.mark.parametrize("method", of_each_shape(ON_THE_WIRE))
def test_devices_and_the_coordinator_count_the_same_bytes(method, tmp_path):
    run = few_steps(method).simulation(tmp_path).run()
    run.clock.run(lambda: False, run.clock.now + 10)  # Let the last messages arrive.
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
