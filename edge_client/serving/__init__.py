"""The models that a device serves: whole versions in a folder, links that name them, and who is told of a change.

May import: edge_client.data, edge_client.data.images, methods.contract, methods.nets, methods.served, protocol.*.
"""
