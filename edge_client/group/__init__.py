"""The code for running many devices in one process; each device has its own keys, folder and connection.

May import: edge_client.*, methods.contract, protocol.*, runtime.*.
"""
