"""The models that a device serves to other programs: versions in a folder, links to versions, and a command.

May import: edge_client.data, edge_client.data.images, methods.contract, methods.nets, methods.served, protocol.*.
"""
