"""How the six bundled domains of digits are made, from packages that are installed.

May import: edge_client.data, edge_client.data.images.
"""
