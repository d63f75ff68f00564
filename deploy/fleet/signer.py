"""Sign a host's settings, overrides of these settings, and the files of a release with the root's keys."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from protofleet.deploy.fleet.device.unit import sha256_of
from protofleet.deploy.fleet.device.verify import MANIFEST
from protofleet.deploy.fleet.manifest import files_of, issue_manifest
from protofleet.deploy.fleet.plan import InstalledSettings
from protofleet.deploy.fleet.software import INSTALL_FILE, Release
from protofleet.edge_client.host.overrides import LONGEST_SECONDS, Overrides
from protofleet.federation.enrol.authority import Authority
from protofleet.protocol.security.signed_settings import (
    SETTINGS,
    TUNING,
    SignedSettings,
    SignedTuning,
    issue_settings,
    issue_tuning,
    read_settings,
)
from protofleet.protocol.security.statements import StatementError, armoured
from protofleet.protocol.settings.reader import SettingsError, decode, encode, override, write_toml
from protofleet.runtime.command.errors import RunError

DIGEST_DIGITS: Final = 16  # Number of hexadecimal digits in a digest of settings.


class Signer:
    """The signer of settings and manifests, which also reads the settings that it has signed."""

    def __init__(self, authority: Authority, lock: AbstractContextManager[object]) -> None:
        """Sign with the keys of this root; `lock` ensures that only one thread signs at a time."""
        self._authority, self._lock = authority, lock

    def installed_settings(self, name: str, data: bytes) -> InstalledSettings:
        """Return the digest and the version of installed settings.

        If our root has not signed the settings for this host, the digest is empty and the version is 0.
        """
        found = self._read(data)
        if found is None or found.name != name:
            return InstalledSettings()
        return InstalledSettings(settings_digest(found.text), found.version)

    def signed_settings(self, name: str, text: str, above: int) -> str:
        """Sign settings. Their version is the present time or `above` + 1, whichever is larger."""
        settings = SignedSettings(self._authority.federation, name, max(int(time.time()), above + 1), text)
        return armoured(SETTINGS, issue_settings(settings, self._authority.keys))

    def release_folder(self, release: Release) -> Path:
        """Return the folder of a release for shipping; add the signed manifest if the folder has none."""
        folder = release.folder
        with self._lock:
            if not (folder / MANIFEST).exists():
                (folder / INSTALL_FILE).write_text("\n".join([*release.install_arguments, ""]))
                for file, text in self.manifest(f"release {release.name}", files_of(folder)).items():
                    (folder / file).write_text(text)
        return folder

    def manifest(self, subject: str, files: Mapping[str, str]) -> dict[str, str]:
        return issue_manifest(self._authority.federation, subject, files, self._authority.keys)

    def signed_tuning(self, name: str, changes: Sequence[str], hours: float) -> str:
        """Sign overrides of settings, which a device applies for `hours` hours.

        The overrides are checked on this machine, and a mistake raises SettingsError. Therefore no device gets
        wrong overrides.
        """
        for change in changes:
            if "=" not in change:
                raise SettingsError(
                    f"--set is {change!r}, which is not of the form KEY=VALUE, such as paused=true"
                )
        text = write_toml(encode(decode(Overrides, override({}, changes), "tuning")))
        now = int(time.time())
        if not 0 < hours * 3600 <= LONGEST_SECONDS:
            raise SettingsError(
                f"--hours is {hours:g}, it must be above 0 and at most {LONGEST_SECONDS // 3600}"
            )
        tuning = SignedTuning(self._authority.federation, name, now, now + int(hours * 3600), text)
        return armoured(TUNING, issue_tuning(tuning, self._authority.keys))

    def verified_settings_text(self, data: bytes) -> str:
        found = self._read(data)
        if found is None:
            raise RunError("the earlier settings on the device are not signed by our root")
        return found.text

    def _read(self, data: bytes) -> SignedSettings | None:
        try:
            return read_settings(data, [root.public for root in self._authority.roots])
        except StatementError:
            return None


def settings_digest(text: str) -> str:
    """Return a digest of the settings. Two settings are compared by their digests."""
    return sha256_of(text)[:DIGEST_DIGITS]
