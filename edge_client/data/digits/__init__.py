"""The six bundled domains of digits, which are made from files of installed packages.

May import: edge_client.data, edge_client.data.images.
"""
