"""The [models] table: the models that a device serves, and their folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.reader import demand_within

GLOBAL: Final = "global"  # serve the run's model, which the coordinator sends
PERSONAL: Final = "personal"  # serve the model that this device has trained
AUTO: Final = "auto"  # serve the model whose accuracy the method's paper reports
OFF: Final = "off"
SERVED: Final = (AUTO, GLOBAL, PERSONAL, OFF)


@dataclass(frozen=True)
class ModelSettings:
    """The settings of the models that a device serves to other programs of its machine."""

    folder: str = "models"
    """Folder of versions and links; a relative path starts in the device's own folder."""
    serve: str = AUTO
    """Model that is served, `auto` (the model that the method's paper reports), `global`, `personal` or `off`."""
    keep: Annotated[int, Within(1, 1000)] = 3
    """Number of the newest versions that are kept, in addition to versions to which a link points."""
    template: str = ""
    """Folder of an export with `model.onnx`, which gets the numbers of each version; empty means no ONNX."""
    on_model: tuple[str, ...] = ()
    """Command and its arguments, run without a shell when another version is served; empty means none."""

    def __post_init__(self) -> None:
        demand_within(self)
        if self.serve not in SERVED:
            raise ValueError(f"serve is {self.serve!r}, it must be one of {', '.join(SERVED)}")
        if not self.folder:
            raise ValueError("folder is empty; name a folder, or leave the setting folder out")
        if self.on_model and not self.on_model[0]:
            raise ValueError("on_model begins with an empty word; it must begin with a program")

    @property
    def serves(self) -> bool:
        return self.serve != OFF

    def folder_in(self, state: Path) -> Path:
        """Return the folder of the models; `state` is the device's own folder."""
        return state / self.folder

    def kind(self, reports: str) -> str:
        """Return the model to serve, "global" or "personal".

        `reports` is the model whose accuracy the method's paper reports.
        """
        return reports if self.serve == AUTO else self.serve
