"""A folder to which samples are added: its list of usable samples, their store, and their use for training.

May import: edge_client.data, edge_client.data.images, protocol.*.
"""
