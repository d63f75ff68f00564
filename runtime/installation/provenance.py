"""Record where the numbers of a run come from: the software, and the settings that decide the result."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from protofleet.runtime.installation.checkout import ROOT, is_checkout

# Folders whose code decides what a run learns and sends. Other folders draw reports, deploy and monitor.
DECIDING: Final = ("protocol", "runtime", "methods", "edge_client", "coordinator", "lab/local")
# Settings of an experiment that change no number of its result, and its seed, which is recorded next to the
# digest.
OTHER_SETTINGS: Final = frozenset(
    {"name", "seed", "broker", "compute", "metrics_port", "metrics_host", "pictures", "confusion"}
    | {
        "federation",
        "folder",
        "enrolled",
        "key",
        "security",
        "broker_words",
        "watchdog_seconds",
        "experiment",
    }
)
# Keys for folders of data, in [data] and the tables of [domains].
FOLDERS: Final = frozenset({"root", "inbox"})
DIGITS: Final = 12
GIT_SECONDS: Final = 10.0


@functools.cache  # Files of a checkout may change while a run goes on.
def software() -> dict[str, str]:
    """Name the software that runs: a digest of the deciding sources, and in a checkout the commit.

    The commit has a "+" if files differ from it.
    """
    found = {"sources": digest_of_sources()}
    if commit := commit_of_checkout():
        found["commit"] = commit
    return found


def digest_of_sources() -> str:
    """Return the digest, which is the same for a checkout and for a wheel that was built from it."""
    whole = hashlib.sha256()
    for path in _deciding_files():
        name = path.relative_to(ROOT).as_posix()
        whole.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:DIGITS]


def _deciding_files() -> Iterator[Path]:
    for folder in DECIDING:
        yield from sorted((ROOT / folder).rglob("*.py"))


def commit_of_checkout() -> str:
    """Return the commit; "" for an installed wheel, without git, or if git does not answer."""
    git = shutil.which("git")
    if git is None or not is_checkout() or not (ROOT / ".git").exists():
        return ""
    commit = _git(git, "rev-parse", f"--short={DIGITS}", "HEAD")
    changed = _git(git, "status", "--porcelain", "--untracked-files=normal", "--", *DECIDING)
    return f"{commit}+" if commit and changed else commit


def _git(git: str, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [git, "-C", str(ROOT), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def digest_of_experiment(table: Mapping[str, Any]) -> str:
    """Return the digest of a resolved experiment, with all its base files and defaults.

    Runs with several seeds have the same digest.
    """
    deciding = {key: _without_folders(value) for key, value in table.items() if key not in OTHER_SETTINGS}
    text = json.dumps(deciding, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _without_folders(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_folders(inner) for key, inner in value.items() if key not in FOLDERS}
    return value
