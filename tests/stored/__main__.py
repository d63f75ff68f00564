"""Keep the files of the present format: python -m tests.stored. Stored formats are never written again."""

import json
import sys
import tempfile
from pathlib import Path

from protofleet.coordinator.spool.spool import Spool
from protofleet.edge_client.state.device import DeviceState
from tests.stored.world import DEVICES, HERE, facts, pack, stopped

try:
    from protofleet.coordinator.spool.index import FORMAT
except ImportError:
    FORMAT = 0  # Files of that time did not name their format.

target = HERE / f"format-{FORMAT}.tar.xz"
if target.exists():
    sys.exit(f"{target} is here; a format that has been given out does not change: make another number")
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    stopped(folder)
    pack(folder, target)
    found = facts(Spool(folder / "coordinator", durable=False))
    found["books"] = {
        d: [[a.round, a.phase, a.object] for a in DeviceState(folder / d, durable=False).saved.answers]
        for d in DEVICES
    }
target.with_suffix("").with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
