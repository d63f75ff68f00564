"""A whole federation in one process, with virtual time and a simulated network.

May import: coordinator.*, edge_client.*, methods.contract, methods.plugins, protocol.*, runtime.
"""
