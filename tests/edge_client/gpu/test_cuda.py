"""A real GPU counts like the simulated one, and every method learns there; without a GPU the tests are skipped."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from protofleet.edge_client.gpu.accelerator import Cuda
from protofleet.edge_client.gpu.admission import Admission, GpuFullError, Work
from protofleet.edge_client.gpu.turns import Turns
from protofleet.edge_client.trainer.gpu_job import GpuJob, GpuWork
from protofleet.edge_client.trainer.job import LocalJob
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.nets.base import initialised_from
from protofleet.methods.parts.local import LocalHyper, train
from tests.edge_client.gpu.simulated import MiB, SimulatedGpu
from tests.support.small_federation import Shard, TensorSamples, simulation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]
PLACE = torch.device("cuda")
STEPS = [
    *(("take", size) for size in (1000, MiB // 2, 3 * MiB, 9 * MiB, 30 * MiB + 5, 200 * MiB)),
    ("free", 3),
    ("free", 5),
    ("take", 8 * MiB),
    ("reset", 0),
    ("release", 0),
    ("take", 100 * MiB),
    ("free", 0),
    ("release", 0),
]


@pytest.fixture
def gpu():
    gc.collect()
    torch.cuda.empty_cache()
    return Cuda(PLACE)


class Real:
    """A real GPU with the methods of the simulated one to take and free memory."""

    def __init__(self, gpu):
        self.gpu = gpu

    def allocate(self, size):
        return [torch.empty(size, dtype=torch.uint8, device=PLACE)]

    def free(self, block):
        block.clear()


def figures(gpu, blocks):
    """Return the reserved and allocated bytes and both peaks after each step, less the values at the start."""
    gpu.reset_peak()
    taken, found, reserved, allocated = [], [], gpu.reserved_bytes(), gpu.allocated_bytes()
    for what, number in STEPS:
        match what:
            case "take":
                taken.append(blocks.allocate(number))
            case "free":
                blocks.free(taken[number])
            case "reset":
                gpu.reset_peak()
            case "release":
                gpu.release_cache()
        found.append((
            what, number, gpu.reserved_bytes() - reserved, gpu.peak_reserved_bytes() - reserved,
            gpu.allocated_bytes() - allocated, gpu.peak_allocated_bytes() - allocated,
        ))  # fmt: skip
    return found


def test_a_real_gpu_counts_memory_like_the_simulated_gpu(gpu, tmp_path):
    simulated = SimulatedGpu(tmp_path, total=2000 * MiB)
    assert figures(gpu, Real(gpu)) == figures(simulated, simulated)


def test_a_gpu_has_a_stable_name_for_files_and_less_free_memory_than_total(gpu):
    assert gpu.name.replace("-", "").replace("_", "").isalnum() and gpu.name == Cuda(PLACE).name
    assert 0 < gpu.free_bytes() < gpu.total_bytes()


def admission(gpu, folder):
    (folder / "turns").mkdir(exist_ok=True)
    return Admission(gpu, Turns(folder / "turns" / gpu.name, gpu))


def test_work_that_runs_out_of_memory_is_done_again_and_leaves_no_memory(gpu, tmp_path):
    one, work = admission(gpu, tmp_path), Work("train", "train", 1)
    sizes = [MiB, 2 * gpu.total_bytes(), MiB]

    def do():
        return len(torch.empty(sizes.pop(0), dtype=torch.uint8, device=PLACE))

    assert one.run(work, do) == MiB, "the first work is measured"
    before = gpu.reserved_bytes()
    assert one.run(work, do) == MiB
    assert (one.usage.out_of_memory, gpu.reserved_bytes()) == (1, before)


def test_the_error_for_work_larger_than_the_gpu_states_the_limit(gpu, tmp_path):
    with pytest.raises(
        GpuFullError, match=r"of the GPU's [\d,]+ MB that others leave free.*CUDA out of memory"
    ):
        admission(gpu, tmp_path).run(
            Work("train", "train", 1),
            lambda: torch.empty(2 * gpu.total_bytes(), dtype=torch.uint8, device=PLACE),
        )


def test_a_tensor_kept_after_its_turn_stays_reserved_and_counts_in_the_peak(gpu, tmp_path):
    one, kept = admission(gpu, tmp_path), []
    one.run(
        Work("data", "data", 1), lambda: kept.append(torch.empty(64 * MiB, dtype=torch.uint8, device=PLACE))
    )
    assert gpu.reserved_bytes() >= 64 * MiB and one.usage.peak_bytes >= 64 * MiB


@pytest.mark.parametrize("method", names())
@pytest.mark.parametrize("stays", [True, False], ids=["stays", "leaves"])
def test_each_method_learns_with_devices_that_share_a_gpu(method, stays, gpu, tmp_path):
    run = simulation(tmp_path / "run", method)
    shared = admission(gpu, tmp_path)
    for name, agent in run.agents.items():
        agent.tasks.runner.start_job = jobs(shared, name, run.shards[name], stays)
    run.run()
    reports = f"accuracy.test.{load(method).reports}"
    found = [agent.state.saved.answers[-1].metrics[reports] for agent in run.agents.values()]
    assert min(found) > 2 / 3, "twice chance"
    assert shared.usage.out_of_memory == 0 and shared.usage.peak_bytes > 0


def test_layers_with_random_numbers_draw_the_same_for_the_same_task(gpu):
    """A device whose work ran out of memory, or that was restarted, sends the same bits."""

    def trained():
        with initialised_from(1):
            model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(), nn.Linear(32, 3)).to(PLACE)
        draw = torch.Generator().manual_seed(2)
        x, y = torch.randn(24, 8, generator=draw), torch.arange(24) % 3
        data = TensorSamples(x.to(PLACE), y.to(PLACE))

        def objective(x, y):
            return F.cross_entropy(model(x), y)

        train(model, data, objective, LocalHyper(epochs=2, batch=8), torch.Generator().manual_seed(3))
        return model[0].weight.detach()

    before = torch.cuda.get_rng_state(PLACE)
    first = trained()
    assert torch.equal(torch.cuda.get_rng_state(PLACE), before), "the state of the generator is unchanged"
    torch.rand(5, device=PLACE)
    assert torch.equal(first, trained())


def jobs(shared, name, data, stays):
    def start(plan):
        return GpuJob(GpuWork(shared, plan.digest.hex(), 1000), lambda: begin(plan), stays=stays)

    def begin(plan):
        there = on_gpu(data)
        half = plan.client_half(there.train, name, None, PLACE, validation=there.validation)
        return LocalJob(half, there, plan.variant.reports)

    return start


def on_gpu(data):
    parts = (
        TensorSamples(part.x.to(PLACE), part.y.to(PLACE)) for part in (data.train, data.validation, data.test)
    )
    return Shard(data.domain, data.classes, *parts)
