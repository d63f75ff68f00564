"""What a device sends and when: hellos, answers until their receipts, pauses, and a watchdog for the coordinator.

May import: edge_client, edge_client.state, methods.contract, methods.plugins, protocol.*, runtime.
"""
