"""The data of a device: the sources, the division of the data among devices, and the conversion to tensors.

No module here downloads data. docs/data.md lists the sources and explains how to get their files.

May import: edge_client.data.*, methods.plugins, protocol, protocol.settings, protocol.storage, protocol.wire.
"""
