"""The `protofleet` command and all that puts parts together; nothing imports it. Here: errors and exit codes.

May import: edge_client.*, coordinator.*, methods.plugins, protocol.*, runtime.
"""
