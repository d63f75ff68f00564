"""The parts that every method has or uses: its halves, the arrays of its updates, its plan and its cost; the catalog.

May import: methods.nets, methods.plugins, protocol.wire, protocol.settings.
"""
