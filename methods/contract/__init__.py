"""What a method is and may ask for: halves, wants, plans, costs; and which methods there are by name.

May import: methods.nets, methods.plugins, protocol.wire, protocol.settings.
"""
