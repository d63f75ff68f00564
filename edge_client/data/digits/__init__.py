"""The making of the six bundled domains of digits from files of installed packages.

May import: edge_client.data, edge_client.data.images.
"""
