"""The messages of a device and their times: hellos, updates, pauses, and a watchdog for the coordinator.

May import: edge_client, edge_client.state, methods.contract, methods.plugins, protocol.*, runtime.
"""
