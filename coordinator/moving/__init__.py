"""The move of a coordinator to another machine: the archive, the mark of a folder that was moved, and unpacking.

May import: coordinator.queue, coordinator.spool, protocol, protocol.security, protocol.settings,
protocol.storage, protocol.wire.
"""
