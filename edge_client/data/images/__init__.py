"""The decoding, resizing and transformation of images with integers, which give the same bytes on every machine.

May import: edge_client.data, protocol.settings.
"""
