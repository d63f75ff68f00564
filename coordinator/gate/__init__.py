"""Whether an offered answer is fetched, and the space that is reserved for it on the disk.

May import: coordinator.devices, coordinator.round, coordinator.spool, methods.contract, protocol.*.
"""
