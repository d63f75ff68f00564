"""What is kept of the models of a run beside what a replay needs.

May import: coordinator.observe, coordinator.spool, protocol.storage, protocol.wire.
"""
