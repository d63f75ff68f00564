"""The gate: it decides whether an offered update is fetched, and reserves space for it on the disk.

May import: coordinator.devices, coordinator.round, coordinator.spool, methods.contract, protocol.*.
"""
