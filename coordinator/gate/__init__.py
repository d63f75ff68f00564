"""Decide whether an offered update is fetched, and reserve its space on the disk.

May import: coordinator.devices, coordinator.round, coordinator.spool, methods.contract, protocol.*.
"""
