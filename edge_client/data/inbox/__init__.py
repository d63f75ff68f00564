"""The inbox, a folder to which samples are added: the list of usable samples, their store, and their use.

May import: edge_client.data, edge_client.data.images, protocol.*.
"""
