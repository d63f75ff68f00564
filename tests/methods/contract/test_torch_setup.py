"""Tests of torch's settings and what they import and cost, in new processes, because flags and threads are global."""

import json
import os
import subprocess
import sys

import pytest

from protofleet.methods.contract.catalog import names
from tests.rooms import ROOT

COMPILER = ("torch._dynamo", "torch._inductor", "sympy")

FLAGS = """
import json, sys, warnings, torch
from torch.utils import deterministic
from protofleet.methods.contract.torch_setup import compute_deterministically

def flags():
    return {
        "enabled": torch.are_deterministic_algorithms_enabled(),
        "warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "mode": torch.get_deterministic_debug_mode(),
        "fills": deterministic.fill_uninitialized_memory,
        "cudnn": [torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark],
        "matmul": torch.get_float32_matmul_precision(),
        "empty": torch.empty(3).isnan().all().item(),  # torch fills it, so that its values do not depend on chance
    }

def unrepeatable():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))
        except RuntimeError as error:
            return "error: " + str(error).split(".")[0]
    return [str(one.message).split(".")[0] for one in said]

def seen():
    return flags(), unrepeatable(), sorted(set(sys.argv[1:]) & sys.modules.keys())

before = flags()
found = {}
for how in ("error", "warn"):
    compute_deterministically(strict=how == "error")
    found[how] = [seen()]
torch.set_deterministic_debug_mode("default")
after = flags()
for how in found:
    torch.use_deterministic_algorithms(True, warn_only=how == "warn")
    found[how].append(seen())
print(json.dumps([before, after, found]))
"""

ROUNDS = """
import json, sys, tempfile
from pathlib import Path
import protofleet.coordinator.main, protofleet.edge_client.main  # what both programs import counts too
from protofleet.methods.contract.catalog import names
from protofleet.methods.contract.torch_setup import compute_deterministically
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import simulation


compute_deterministically(strict=True)
policy = RunPolicy(rounds=1, quorum=3, cohort=3, patience_seconds=60.0, settle_seconds=0.5, straggler_factor=0.0)
SHORT = {"epochs": 1, "server_epochs": 1}
loaded = {}
for method in names():
    with tempfile.TemporaryDirectory() as folder:
        assert simulation(Path(folder), method, policy=policy, hyper=SHORT).run().service.finished
    loaded[method] = sorted(set(sys.argv[1:]) & sys.modules.keys())
print(json.dumps(loaded))
"""

THREADS = """
import queue, time, torch
from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.contract.torch_setup import one_thread_here
from protofleet.methods.contract.wants import TensorSpec, problem_with
from protofleet.protocol.wire.arrays import Body, encode
from protofleet.runtime.event_loop import ThreadWorker

sent = {f"weights.{i}": torch.randn(shape) for i, shape in enumerate([(251, 192), (251,), (16, 251), (31, 16)])}
wanted = {name: TensorSpec(tuple(value.shape)) for name, value in sent.items()}
body = b"".join(bytes(part) for part in encode(to_numpy(sent)))

def judge():
    before = time.process_time()
    for _ in range(40):
        payload = LazyPayload(Body(lambda a, b: bytearray(body[a:b]), len(body)))
        assert problem_with(wanted, payload, 60, 1e6) is None
    return time.process_time() - before

torch.set_num_threads(1)
judge()
alone = min(judge() for _ in range(5))
torch.set_num_threads(8)  # as on a machine with so many cores
inbox = queue.SimpleQueue()
worker = ThreadWorker(inbox, begin=one_thread_here(THREADS))
worker.submit(torch.get_num_threads, print)
inbox.get().call()
print(torch.get_num_threads())
print(min(judge() for _ in range(5)) / alone)
"""


def in_a_fresh_process(program: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("OMP_NUM_THREADS", None)
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_compute_deterministically_sets_the_same_flags_as_torch_without_a_compiler():
    before, after, found = json.loads(in_a_fresh_process(FLAGS, *COMPILER))
    assert before == after and not before["enabled"]
    for how, (ours, theirs) in found.items():
        assert ours[:2] == theirs[:2]
        assert ours[0]["enabled"] and ours[0]["warns"] == (how == "warn")
        assert ours[1] and "put_" in str(ours[1]), "an operation that cannot repeat its bits must be reported"
        assert ours[2] == []
        assert theirs[2], "torch's own call imports no compiler any longer, and ours is not needed"


@pytest.mark.slow
def test_a_round_of_every_method_imports_no_compiler():
    loaded = json.loads(in_a_fresh_process(ROUNDS, *COMPILER))
    assert set(loaded) == set(names())
    assert not any(loaded.values()), loaded


@pytest.mark.parametrize("threads", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_the_event_loop_uses_one_thread_and_the_worker_the_threads_of_the_settings(threads):
    program = THREADS.replace("THREADS)", f"{threads})")
    of_the_worker, of_the_loop, ratio = in_a_fresh_process(program).split()
    assert (int(of_the_worker), int(of_the_loop)) == (threads or 8, 1)
    assert float(ratio) < 2.0, "must be as fast as with one thread of torch in all threads"
