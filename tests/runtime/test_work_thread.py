import json
import logging
import queue
import weakref

from protofleet.edge_client.work_turns import WorkTurns
from protofleet.runtime.event_loop import ThreadWorker
from protofleet.runtime.logs import JsonFormatter, lines_of_run


class Large:
    pass


def test_an_idle_worker_keeps_no_object_of_its_last_job():
    results: queue.SimpleQueue = queue.SimpleQueue()
    worker, ended, large = ThreadWorker(results), queue.SimpleQueue(), Large()
    weakref.finalize(large, ended.put, True)
    worker.submit(lambda kept=large: None, lambda result, kept=large: None)
    del large
    results.get(timeout=20.0)
    assert ended.get(timeout=20.0)


def run_of_lines():
    """Return the run that a log line of this moment names."""
    record = logging.LogRecord("protofleet", logging.INFO, "", 0, "", (), None)
    return json.loads(JsonFormatter().format(record)).get("run")


def test_log_lines_of_work_and_of_its_result_name_the_run_of_the_work():
    results: queue.SimpleQueue = queue.SimpleQueue()
    worker, named = ThreadWorker(results), []
    for run in ("red", "blue"):
        with lines_of_run(run):
            worker.submit(run_of_lines, lambda of_work: named.append((of_work, run_of_lines())))
    for _ in range(2):
        results.get(timeout=20.0).call()
    assert named == [("red", "red"), ("blue", "blue")] and run_of_lines() is None


def test_log_lines_of_a_task_that_waited_for_its_turn_name_its_own_run():
    class Blue:
        def begin_next(self):
            named.append(run_of_lines())

    turns, red, named = WorkTurns(), object(), []
    turns.begin(red)
    with lines_of_run("blue"):
        turns.wait(Blue())
    with lines_of_run("red"):
        turns.end(red)
        turns.begin_next()
    assert named == ["blue"]
