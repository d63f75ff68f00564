"""Images in integers: decoded, resized and transformed to the same bytes on every machine.

May import: edge_client.data, protocol.settings.
"""
