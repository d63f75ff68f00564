"""Networks, and which there are by name.

May import: methods.plugins, protocol.settings.
"""
