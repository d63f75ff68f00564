"""Sources of data by the form in which they are published, one module each.

May import: edge_client.data, edge_client.data.images, edge_client.data.digits, protocol.settings.
"""
