"""The networks, and their catalog by name.

May import: methods.plugins, protocol.settings.
"""
