"""Checks of every method, network and data set, as functions that `protofleet check` and the tests call.

May import: coordinator.observe, coordinator.round, edge_client.data, lab.simulation, methods.*,
protocol.settings, protocol.wire.
"""
