"""The coordinator's part of secure aggregation: the steps of one attempt, and the sum at their end.

May import: coordinator.round, methods.contract, protocol.secagg, protocol.settings, protocol.wire.
"""
