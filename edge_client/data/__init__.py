"""A device's data: where they come from, which part is its own, how they become tensors.

Nothing is downloaded; docs/data.md says what there is and how to get it.

May import: edge_client.data.*, methods.plugins, protocol.settings, protocol.storage, protocol.wire.
"""
