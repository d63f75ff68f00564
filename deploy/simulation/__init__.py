"""A whole federation in one process, with virtual time and a made-up network.

May import: coordinator.*, edge_client.*, methods.contract, protocol.*, runtime.
"""
