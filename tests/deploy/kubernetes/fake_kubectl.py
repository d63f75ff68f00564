"""A program that replaces kubectl, and writes the objects that kubectl would send to the API server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PROGRAM = """\
#!/bin/sh
# Write the files of `kubectl create secret generic NAME --from-file=...` or `create configmap` into $OBJECTS/NAME.
shift
[ "$1" = secret ] && shift
shift
name=$1 from=${2#--from-file=}
mkdir -p "$OBJECTS/$name"
case $from in
    *=*) cat "${from#*=}" >"$OBJECTS/$name/${from%%=*}" ;;
    *) cp "$from"/* "$OBJECTS/$name/" ;;
esac
"""


def run_script(script: Path, keys: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a chart's secrets.sh for a folder of keys; the objects are folders in `folder`/objects."""
    kubectl = folder / "bin" / "kubectl"
    kubectl.parent.mkdir(exist_ok=True)
    kubectl.write_text(PROGRAM)
    kubectl.chmod(0o755)
    own = {"PATH": f"{kubectl.parent}:{os.environ['PATH']}", "OBJECTS": str(folder / "objects")}
    return subprocess.run(["sh", str(script), str(keys)], env=own, capture_output=True, text=True, timeout=60)
