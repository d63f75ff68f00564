"""The contract of a method: halves, wants, plans, costs; and the catalog of methods by name.

May import: methods.nets, methods.plugins, protocol.wire, protocol.settings.
"""
