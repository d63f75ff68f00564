"""The models of a run that are kept in addition to the files that a replay needs.

May import: coordinator.observe, coordinator.spool, protocol.storage, protocol.wire.
"""
