"""Many devices in one process, each with its own identity, keys, folder and connection.

May import: edge_client.*, methods.contract, protocol.*, runtime.*.
"""
