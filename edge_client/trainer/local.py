"""The trainer in the process that has the data: the agent's own process, or the child process that trains."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import torch

from protofleet.edge_client.compute import CPU, compute_place, moved, set_torch
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.inbox.shard import as_listing, joined, samples_of
from protofleet.edge_client.data.shard import Shard, Shards
from protofleet.edge_client.gpu.accelerator import Cuda
from protofleet.edge_client.gpu.admission import Admission, GpuFullError, Work
from protofleet.edge_client.gpu.turns import Turns, folder_of
from protofleet.edge_client.limits import HalfBuilder
from protofleet.edge_client.public_images import public_images
from protofleet.edge_client.serving.publisher import ModelOrigin, ModelPublisher
from protofleet.edge_client.trainer.deadline import Deadline
from protofleet.edge_client.trainer.features import StoredFeatures
from protofleet.edge_client.trainer.gpu_job import GpuJob, GpuWork
from protofleet.edge_client.trainer.job import Job, LocalJob, Models, NoModels, ServedAndKept
from protofleet.edge_client.trainer.kept_models import KeptModels
from protofleet.edge_client.trainer.slot_job import SlotJob
from protofleet.methods.contract.base import ClientHalf
from protofleet.methods.contract.plan import Plan, PublicImages
from protofleet.methods.served import kept
from protofleet.protocol.settings.reader import SettingsError, encode
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.messages import Arrays

log = logging.getLogger("protofleet.device")

# Function that returns the admission to a GPU, or None for a CPU, which needs no admission.
AdmissionTo: TypeAlias = Callable[[torch.device], Admission | None]


def admission_to(place: torch.device) -> Admission | None:
    """Make the admission to the GPU for the whole process, or return None for a CPU; call this once in a process."""
    if place.type != "cuda":
        return None
    gpu = Cuda(place)
    return Admission(gpu, Turns(folder_of(gpu), gpu))


class LocalTrainer:
    def __init__(
        self, settings: DeviceSettings, deadline: Deadline | None = None, shards: Shards | None = None,
        admission: AdmissionTo = admission_to, *, alone: bool = True,
    ) -> None:  # fmt: skip
        """Load the data of a device.

        If the device is `alone` in its process, its half stays on the GPU between two turns. The data also stay
        on the GPU, unless the setting `compute` is "auto". With "auto", a plan may train on the CPU.
        """
        self.place = set_torch(settings)
        self._settings, self._deadline, self._alone = settings, deadline, alone
        self.admission = admission(self.place)
        self._shards = shards or Shards()
        self._publisher = publisher_of(settings)
        self._own = self.data = self._shards.load(settings.data, settings.plugins)
        self._network = settings.network and settings.network.taken(settings.plugins)
        self._accepted: set[bytes] = set()  # Hashes of the plans that the limits allow with the present data.
        if self.admission is not None and self._stays_on_gpu:
            self.data = self._moved_for_good(self.admission)

    def learn_from(self, listing: Arrays) -> None:
        """Use the device's own data and the listed samples of the inbox for all jobs that start from now on."""
        settings, state = self._settings, Path(self._settings.folder)
        samples = samples_of(settings.data, state, Disk(settings.durable))
        self.data = joined(self._own, as_listing(listing), samples, settings.data)
        self._accepted.clear()
        if self.admission is not None and self._stays_on_gpu:
            self.data = self._moved_for_good(self.admission)

    def start(self, plan: Plan) -> Job:
        if self.admission is None or not self._pays(plan):
            return self._in_turn(self._job(self._half(plan), self.data, plan))
        work = GpuWork(self.admission, f"{plan.digest.hex()} {self._network}", bytes_of(self.data))
        work.run("a plan", lambda: self._check(plan))
        return GpuJob(work, lambda: self._started_on_gpu(plan), stays=self._alone)

    def _half(self, plan: Plan) -> ClientHalf:
        """Build the half of a plan on the CPU; check the limits only the first time.

        Of several runs, each change to another run starts a job, and the check costs as much as the half itself.
        """
        builder = self._builder(self.data, CPU)
        if plan.digest in self._accepted:
            return builder.build_unchecked(plan)
        half = builder.build(plan)
        self._accepted.add(plan.digest)
        return half

    def _pays(self, plan: Plan) -> bool:
        """Return whether the GPU trains this plan; if `compute` is "auto", the CPU trains plans with little work."""
        pays = self._settings.compute != "auto" or compute_place("auto", plan, self._network) != CPU
        if not pays:
            log.info(
                "the plan's network is so small that the CPU trains it faster than the GPU; see docs/gpu.md"
            )
        return pays

    @property
    def _stays_on_gpu(self) -> bool:
        """Return whether the device's data stay on the GPU for every plan."""
        return self._alone and self._settings.compute != "auto"

    def limit(self, memory_bytes: int, seconds: float) -> None:
        """Do nothing, because these limits are for child processes. In this process, the limits of [limits] apply."""

    def stop(self) -> None:
        """Do nothing, because the trainer ends with its process."""

    def _moved_for_good(self, admission: Admission) -> Shard:
        work = Work("the device's data", ("data", self._settings.name), bytes_of(self.data))
        try:
            return admission.run(work, lambda: moved(self.data, self.place))
        except GpuFullError as error:
            raise SettingsError(str(error)) from None

    def _check(self, plan: Plan) -> None:
        """Raise SettingsError if this device cannot follow the plan."""
        self._builder(moved(self.data, self.place), self.place).build(plan)

    def _started_on_gpu(self, plan: Plan) -> LocalJob:
        data, settings = moved(self.data, self.place), self._settings
        half = plan.client_half(
            data.train, settings.name, self._network, self.place, validation=data.validation,
            public=self._public(plan),
        )  # fmt: skip
        return self._job(half, data, plan)

    def _builder(self, data: Shard, place: torch.device) -> HalfBuilder:
        settings = self._settings
        return HalfBuilder(
            settings.limits, data.train, settings.name, self._network, place, data.validation,
            self._public,
        )  # fmt: skip

    def _public(self, plan: Plan) -> PublicImages | None:
        return public_images(plan, self._settings.data, self._shards)

    def _in_turn(self, job: LocalJob) -> Job:
        slots = self._settings.slots
        return SlotJob(job, slots) if slots.folder else job

    def _job(self, half: ClientHalf, data: Shard, plan: Plan) -> LocalJob:
        return LocalJob(
            half, data, plan.variant.reports,
            snapshots=self._settings.pictures, folder=Path(self._settings.folder) / "pictures",
            deadline=self._deadline, work_seconds=self._settings.limits.work_seconds,
            models=ServedAndKept(self._served(plan, data), self._kept(plan, data)),
            metrics=plan.metrics(), features=self._features(plan),
        )  # fmt: skip

    def _features(self, plan: Plan) -> StoredFeatures:
        settings, network = self._settings, json.dumps(encode(self._network or plan.network), sort_keys=True)
        folder = Path(settings.features or Path(settings.folder) / "features")
        most = settings.limits.features_bytes
        return StoredFeatures(folder, most, network, Disk(settings.durable))

    def _served(self, plan: Plan, data: Shard) -> Models:
        return self._publisher.of(plan, data.names, scale_of(data)) if self._publisher else NoModels()

    def _kept(self, plan: Plan, data: Shard) -> Models:
        settings = self._settings
        if not settings.keep_models:
            return NoModels()
        # If the names of the classes are unknown, the labels are used as names.
        classes = data.names or tuple(str(label) for label in range(plan.classes))
        origin = kept.KeptOrigin(plan, settings.name, self._network or plan.network, classes, scale_of(data))
        return KeptModels(Path(settings.folder), origin, Disk(settings.durable))


def scale_of(data: Shard) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return data.scale.offset, data.scale.by


def publisher_of(settings: DeviceSettings) -> ModelPublisher | None:
    if settings.models is None or not settings.models.serves:
        return None
    origin = ModelOrigin(settings.name, settings.network)
    return ModelPublisher(settings.models, Path(settings.folder), origin, Disk(settings.durable))


def bytes_of(data: Shard) -> int:
    return sum(
        tensor.numel() * tensor.element_size()
        for part in (data.train, data.validation, data.test)
        for tensor in (part.x, part.y)
    )
