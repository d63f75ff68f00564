"""What every method, network and data set has to hold, as functions: `protofleet check` and the tests call the same.

May import: coordinator.*, deploy.simulation, edge_client, edge_client.data, methods.*, protocol.*.
"""
