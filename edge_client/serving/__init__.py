"""The models that a device serves: versions in a folder, links to versions, and a command for each change.

May import: edge_client.data, edge_client.data.images, methods.contract, methods.nets, methods.served, protocol.*.
"""
