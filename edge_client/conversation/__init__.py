"""Messages of a device and their times: hellos, answers until their receipts, pauses, a watchdog for the coordinator.

May import: edge_client, edge_client.state, methods.contract, methods.plugins, protocol.*, runtime.
"""
