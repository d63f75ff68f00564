"""The sources of data: one module for each file format or data set.

May import: edge_client.data, edge_client.data.images, edge_client.data.digits, protocol.settings.
"""
