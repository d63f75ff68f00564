"""The agent's part of serving models: it accepts versions, and runs the owner's command for a new version.

Other processes also change the versions: a training process may write versions, and the command `protofleet model`
moves links. So this module looks regularly at the link `current`, which names the served version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from protofleet.edge_client.serving.hook import ModelHook
from protofleet.edge_client.serving.versions import CURRENT, ModelVersions, Version
from protofleet.protocol.settings.reader import SettingsError

log = logging.getLogger("protofleet.device")


class ModelServing:
    """An observer of the agent; the observer accepts versions of the model.

    `plan` returns the digest of the plan with which the last updates were made.
    """

    def __init__(self, versions: ModelVersions, plan: Callable[[], str], hook: ModelHook | None) -> None:
        self.versions, self._plan, self.hook = versions, plan, hook
        self.changes, self.failures = 0, 0
        self._failed = False
        self._seen: Version | None = None

    def begin(self) -> None:
        """Finish an earlier process's unfinished work, and run the owner's command for the current version."""
        self._try(self.versions.settle)
        self._seen = self.versions.named(CURRENT)
        if self._seen is not None:  # The version may have changed while no process of the device was running.
            self._tell(self._seen)

    def happened(self, what: str, **figures: float) -> None:
        if what == "accepted":
            self._try(lambda: self.versions.accept(self._plan(), int(figures["learned"])))
        if what in ("accepted", "answered"):
            self.check()

    def check(self) -> None:
        """Run the owner's command if the current version has changed since the last look."""
        now = self.versions.named(CURRENT)
        if now is None or (self._seen is not None and now.number == self._seen.number):
            return
        self._seen = now
        self.changes += 1
        log.info("now serving the model version %s of round %d", now.name, now.round)
        self._tell(now)

    def stop(self) -> None:
        if self.hook is not None:
            self.hook.stop()

    @property
    def hook_failures(self) -> int:
        return self.hook.failures if self.hook is not None else 0

    def _tell(self, version: Version) -> None:
        if self.hook is not None:
            self.hook.changed(Path(version.folder).resolve())

    def _try(self, act: Callable[[], None]) -> None:
        """Call `act`, and log a warning if it fails, because such a failure must not end the training."""
        try:
            act()
        except (OSError, SettingsError) as error:
            self.failures += 1
            if not self._failed:
                log.warning(
                    "%s: %s; training goes on, and the earlier version is still served",
                    self.versions.folder,
                    error,
                )
            self._failed = True
        else:
            self._failed = False
