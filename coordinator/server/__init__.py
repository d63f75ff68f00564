"""The server half at work, step by step, and the search for answers that it cannot go on with.

May import: coordinator.round, coordinator.spool, methods.contract, methods.plugins, protocol.wire, runtime.
"""
