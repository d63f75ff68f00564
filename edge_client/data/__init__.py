"""A device's data: where it comes from, which part of it is this client's, and how it becomes tensors.

docs/data.md says what there is and how to get it. Nothing here downloads anything.
"""

from __future__ import annotations

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Part, Shard, class_names, load, stated
from protofleet.edge_client.data.sources import domains, names

__all__ = ["DataError", "DataSettings", "Part", "Shard", "class_names", "domains", "load", "names", "stated"]
