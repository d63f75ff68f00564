"""The times at which a device sends hellos and updates, its pauses, and a watchdog for the coordinator.

May import: edge_client, edge_client.state, methods.contract, methods.plugins, protocol.*, runtime.
"""
