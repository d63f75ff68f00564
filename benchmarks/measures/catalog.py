"""All measures, by name.

Some measures take minutes, or need something that is not on every machine. Such a measure runs only if the command
line names it.
"""

from __future__ import annotations

from benchmarks.harness.measure import Figure, Measure
from benchmarks.measures.answers import Answers
from benchmarks.measures.broadcast import Broadcast
from benchmarks.measures.crowd import Crowd, Restart
from benchmarks.measures.engine_tasks import EngineTasks
from benchmarks.measures.federation_tasks import FederationTasks
from benchmarks.measures.first_question import FirstQuestion
from benchmarks.measures.flower import Flower
from benchmarks.measures.flower_simulation import FlowerSimulation
from benchmarks.measures.idle import Idle, IdleService
from benchmarks.measures.program import Program
from benchmarks.measures.run import Run
from benchmarks.measures.run_memory import RunMemory
from benchmarks.measures.several_nodes import SeveralNodes
from benchmarks.measures.stack import Stack
from benchmarks.measures.sweep_tasks import SweepTasks
from benchmarks.measures.two_slots import TwoSlots


def ratio() -> Figure:
    """Return a figure for a ratio within one run. Such a ratio can be compared between machines."""
    return Figure("", steady=True)


def transfer(name: str, what: str, **given: int) -> Program:
    figures = {"ours over plain": Figure("", "higher", steady=True), "ours": Figure("MB/s", "higher")}
    return Program(name, what, "transfer", figures, given)


TRANSFER = transfer(
    "transfer", "64 MiB from a device to a coordinator, compared with a plain publish through the same broker"
)
TRANSFER_QOS_0 = transfer("transfer-qos-0", "the measure transfer with blocks at QoS 0", qos=0)
TRANSFER_LOADED = transfer(
    "transfer-loaded", "the measure transfer while ten other processes use the cores", busy=10
)
TRANSFER_LOADED_QOS_0 = transfer(
    "transfer-loaded-qos-0", "the measure transfer-loaded with blocks at QoS 0", busy=10, qos=0
)
ROUND = Program(
    "round",
    "a round of 10 devices x 600 samples x 1 epoch x 53,002 parameters, compared with a plain PyTorch loop",
    "round_cost",
    {"cpu over bare": ratio(), "seconds over bare": ratio(), "cpu": Figure("s"), "seconds": Figure("s")},
)
TRAINING = Program(
    "training",
    "CPU of a device's training (600 samples, 53,002 parameters), compared with a plain PyTorch loop",
    "bare",
    {"trainer over bare": ratio()},
    {"devices": 1, "rounds": 30},
)


def hosted_round(name: str, where: str, epochs: int, processes: int) -> Program:
    return Program(
        f"{name}-{epochs}",
        f"a round of 10 devices in {where} x 600 samples x {epochs} epoch{'s' * (epochs > 1)} x 53,002 parameters, "
        "with all costs, compared with a plain PyTorch loop in one process",
        "hosted_round",
        {
            "cpu over bare": ratio(),
            "seconds over bare": ratio(),
            "cpu": Figure("s"),
            "seconds": Figure("s"),
            "bare cpu a device": Figure("ms"),
        },
        {"epochs": epochs, "processes": processes},
    )


IN_ONE = ("round-hosted", "one process")
AS_RUN = ("round-run", "a process a core, as in `protofleet run`,")
ROUNDS = Program(
    "rounds",
    "the cost of a round without its training: ten device processes, ten rounds",
    "rounds",
    {
        "fedavg_53002: communication_seconds_median": Figure("s"),
        "fedavg_53002: wire_over_payload_at_the_coordinator": ratio(),
        "fedavg_53002: wire_over_payload_at_the_devices": ratio(),
        "fedproto_20kB: communication_seconds_median": Figure("s"),
        "fedproto_20kB: wire_over_payload_at_the_coordinator": ratio(),
        "fedproto_20kB: wire_over_payload_at_the_devices": ratio(),
    },
)
SEALING = Program(
    "sealing",
    "sealing and opening 45 MB, compared with one pass of SHA-256 and one of AES-GCM",
    "sealing",
    {
        "sealing_and_opening_over_plain": ratio(),
        "bytes_over_payload": Figure("B", steady=True),
        "bytes_of_an_envelope_over_its_payload": Figure("B", steady=True),
    },
)
CODING = Program(
    "coding",
    "CPU of one core for coding a million numbers, and for adding an update of FedAvg with and without a codec",
    "coding",
    {
        **{
            f"{form}: {way}": Figure("ms")
            for form in ("exact", "float16", "int8", "int4", "rice", "ternary")
            for way in ("encoding_ms", "decoding_ms")
        },
        "update: coded over uncoded": ratio(),
    },
)
BESIDE = Program(
    "beside",
    "bytes of one device in a round of FedProto, in addition to the bytes of its arrays",
    "beside",
    {"10 kB: beside": Figure("B", steady=True), "3.5 kB: beside": Figure("B", steady=True)},
)
WEAR = Program(
    "wear",
    "the bytes that a device syncs to its disk in a round",
    "wear",
    {
        f"{method}: {figure}": Figure(unit, steady=True)
        for method in ("fedavg", "fedproto", "fedlsa", "fedplcc", "fedpall")
        for figure, unit in (
            ("made_bytes_a_round", "B"),
            ("syncs_a_round", ""),
            ("folder_bytes_at_most", "B"),
        )
    },
)
MEMORY = Program(
    "memory",
    "peak memory of a coordinator with a model of 45 MB, and resident memory of an idle device",
    "memory",
    {
        "coordinator_peak_MB: cohort_2": Figure("MB", steady=True),
        "coordinator_peak_MB: cohort_20": Figure("MB", steady=True),
        "idle_device_MB": Figure("MB", steady=True),
    },
)

LARGE = Program(
    "large",
    "four rounds with five updates of 45 MB: bytes that a coordinator writes, and its peak memory",
    "large",
    {"written over what came": ratio(), "coordinator's peak": Figure("MB", steady=True)},
)
LARGE_DEVICE = Program(
    "large-device",
    "peak memory of a device with a model of 180 MB, compared with the peak of `import torch`",
    "large",
    {
        "device's peak": Figure("MB", steady=True),
        "device's peak over import torch, in models": ratio(),
    },
    {"megabytes": 180.0, "devices": 1, "rounds": 1},
)
SIZES = (0.02, 1.0, 10.0, 45.0, 180.0)  # Sizes of a model in megabytes.


def of_size(megabytes: float) -> Program:
    return Program(
        f"model-{megabytes:g}-MB",
        f"a round of two devices with a model of {megabytes:g} MB: seconds, bytes and peaks",
        "large",
        {
            "seconds a round": Figure("s"),
            "written over what came": ratio(),
            "coordinator's peak": Figure("MB", steady=True),
            "device's peak": Figure("MB", steady=True),
        },
        {"megabytes": megabytes, "devices": 2, "rounds": 3},
    )


THIN_LINE = Program(
    "thin-line",
    "an update of 1 MB over a line with 250 kbit/s, 300 ms and 2 % loss; each loss stalls the stream",
    "thin_line",
    {"seconds over size / rate": ratio()},
)


def hosted(devices: int, processes: int = 1) -> Program:
    return Program(
        f"hosted-{devices}",
        f"{devices} devices in {processes} process{'es' * (processes > 1)}, 53,002 parameters, 600 samples: all in",
        "hosted",
        {
            "memory of all": Figure("MB", steady=True),
            "first round": Figure("s"),
            "CPU a device's round": Figure("ms"),
            "seconds a round": Figure("s"),
        },
        {"devices": devices, "processes": processes},
    )


def virtual(devices: int, cohort: int, rounds: int, name: str = "", width: int = 64) -> Program:
    ways = ("", ", one process")
    return Program(
        f"virtual-{name or devices}",
        f"{devices} devices in virtual time, {rounds} rounds with cohorts of {cohort}, a network of width {width}, "
        "run with one process and with one for each core",
        "virtual_fleet",
        {
            **{f"seconds{way}": Figure("s") for way in ways},
            **{f"CPU an update{way}": Figure("ms") for way in ways},
            "CPU an answer": Figure("ms"),
            **{f"peak memory{way}": Figure("MB", steady=True) for way in ways},
        },
        {"devices": devices, "cohort": cohort, "rounds": rounds, "width": width},
    )


def virtual_line(
    name: str, mbits: float, delay: float, loss: float = 0.0, width: int = 64, rounds: int = 8
) -> Program:
    seconds = [f"seconds of {part}" for part in ("a round (median)", "the run", "the last evaluation")]
    return Program(
        f"virtual-line-{name}",
        f"how far off virtual time is: six processes behind lines of {mbits:g} Mbit/s and {1000 * delay:g} ms",
        "virtual_line",
        {
            **{what: Figure("s") for what in (*seconds, "computing in a round")},
            **{f"{what}: off": Figure("") for what in (*seconds, "wire bytes up", "wire bytes down")},
            f"{seconds[0]}: off, with computing": Figure(""),
        },
        {"mbits": mbits, "delay": delay, "loss": loss, "width": width, "rounds": rounds},
    )


USUAL: tuple[Measure, ...] = (
    Run(), Answers(100), Answers(300), TRANSFER, ROUND, TRAINING, SEALING, BESIDE, WEAR,
)  # fmt: skip
BY_NAME: tuple[Measure, ...] = (
    Answers(100, codec="off"), Answers(100, codec="small"), CODING,
    Answers(10), Answers(1000, rounds=2), Answers(100, rounds=3, sync_seconds=0.01),
    Idle(300), Idle(1000, seconds=300.0), IdleService(1000), TwoSlots(1), TwoSlots(10, rounds=20), FirstQuestion(),
    Broadcast(100), Broadcast(1000), Crowd(), Crowd(1000, asked=10), Crowd(10, asked=10), Restart(),
    TRANSFER_QOS_0, TRANSFER_LOADED, TRANSFER_LOADED_QOS_0, ROUNDS, MEMORY,
    LARGE, LARGE_DEVICE, THIN_LINE, hosted(10),
    Run(process_each=True), RunMemory(Run()), RunMemory(Run(process_each=True)),
    hosted(100), hosted(1000, processes=2), hosted_round(*IN_ONE, 1, 1), hosted_round(*IN_ONE, 10, 1),
    hosted_round(*AS_RUN, 1, 0), hosted_round(*AS_RUN, 10, 0), Flower(),
    FlowerSimulation(), FlowerSimulation(10), *map(of_size, SIZES), Stack(), SeveralNodes(), SweepTasks(),
    FederationTasks(), EngineTasks(),
    virtual(1000, cohort=100, rounds=20), virtual(10_000, cohort=1000, rounds=2),
    virtual(200, cohort=100, rounds=3, name="large", width=1310),
    virtual_line("8", 8.0, 0.05), virtual_line("8-small", 8.0, 0.05, width=4),
    virtual_line("8-loss", 8.0, 0.05, loss=0.01), virtual_line("slow", 0.25, 0.15, width=16, rounds=4),
)  # fmt: skip
ALL = {measure.name: measure for measure in (*USUAL, *BY_NAME)}
