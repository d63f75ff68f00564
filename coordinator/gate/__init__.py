"""Whether an answer that is offered is worth fetching, and what room there is for it.

May import: coordinator.devices, coordinator.round, coordinator.spool, methods.contract, protocol.*.
"""
