"""Identify the software and the settings that decide the result of a run."""

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

# Folders whose code decides what a run learns and sends. The code of other folders makes reports, deploys or
# monitors.
DECIDING: Final = ("protocol", "runtime", "methods", "edge_client", "coordinator", "lab/local")
# Settings that are not part of an experiment's digest, because they do not change its result. The seed changes the
# result, but is recorded separately.
OTHER_SETTINGS: Final = frozenset(
    {
        "name",
        "seed",
        "broker",
        "compute",
        "metrics_port",
        "metrics_host",
        "page_port",
        "page_host",
        "page_cert",
        "page_key",
        "pictures",
        "confusion",
    }
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
# Settings that are folders of data, in [data] and in the tables of [domains].
FOLDERS: Final = frozenset({"root", "inbox"})
DIGITS: Final = 12
GIT_SECONDS: Final = 10.0


@functools.cache  # The digest is computed only once, because the files of a checkout may change during a run.
def software() -> dict[str, str]:
    """Return a digest of the sources in the folders DECIDING, and in a checkout also the commit.

    A "+" after the commit means that files differ from the commit.
    """
    found = {"sources": digest_of_sources()}
    if commit := commit_of_checkout():
        found["commit"] = commit
    return found


def digest_of_sources() -> str:
    """Return a digest of the sources in DECIDING. A wheel has the digest of the checkout that built the wheel."""
    whole = hashlib.sha256()
    for path in _deciding_files():
        name = path.relative_to(ROOT).as_posix()
        whole.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:DIGITS]


def _deciding_files() -> Iterator[Path]:
    for folder in DECIDING:
        yield from sorted((ROOT / folder).rglob("*.py"))


def commit_of_checkout() -> str:
    """Return the commit of the checkout, or "" for an installed wheel or if git fails."""
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
    """Return the digest of an experiment's settings, with the settings of its base files and the defaults.

    Runs that differ only in the seed have the same digest.
    """
    deciding = {key: _without_folders(value) for key, value in table.items() if key not in OTHER_SETTINGS}
    text = json.dumps(deciding, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _without_folders(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_folders(inner) for key, inner in value.items() if key not in FOLDERS}
    return value
