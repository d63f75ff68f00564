"""Integer code that decodes, resizes and transforms images, with the same bytes on every machine.

May import: edge_client.data, protocol.settings.
"""
