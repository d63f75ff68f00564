"""Models of a run that are kept in addition to the files of a replay.

May import: coordinator.observe, coordinator.spool, protocol.storage, protocol.wire.
"""
