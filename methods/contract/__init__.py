"""The parts of every method: its halves, the arrays of its updates, its plan, its cost; and the catalog of methods.

May import: methods.nets, methods.plugins, protocol.wire, protocol.settings, protocol.privacy, protocol.secagg.
"""
