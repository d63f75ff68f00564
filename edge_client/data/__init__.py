"""The data of a device: their sources, their division among devices, and their conversion to tensors.

No module here downloads data; docs/data.md lists the sources and the ways to get their files.

May import: edge_client.data.*, methods.plugins, protocol.settings, protocol.storage, protocol.wire.
"""
