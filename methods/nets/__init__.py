"""Networks, and which there are by name.

May import: protocol.settings.
"""
