"""What a device says and when: hellos, answers on their way, pauses, and the watch over a silent coordinator.

May import: edge_client, edge_client.state, methods.contract, protocol.*.
"""
