"""Checks of every method, network and data set, as functions that `protofleet check` and the tests call.

May import: coordinator.*, deploy.simulation, edge_client, edge_client.data, methods.*, protocol.*.
"""
