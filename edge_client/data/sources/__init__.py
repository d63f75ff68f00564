"""The sources of data, one module for each form in which data are published.

May import: edge_client.data, edge_client.data.images, edge_client.data.digits, protocol.settings.
"""
