"""The queue of runs: the states of a run, its next step, the commands of operators, and the file of the queue.

May import: coordinator.devices, coordinator.spool, protocol.settings, protocol.storage, protocol.wire.
"""
