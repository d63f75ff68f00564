import queue
import weakref

from protofleet.runtime.event_loop import ThreadWorker


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
