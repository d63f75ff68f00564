"""A folder of samples that grows: what is in it, what can be used, and how a share is joined to it.

May import: edge_client.data, edge_client.data.images, protocol.*.
"""
