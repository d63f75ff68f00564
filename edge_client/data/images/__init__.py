"""Pictures in whole numbers: decoded, resized, warped and painted alike on every machine.

May import: edge_client.data.
"""
