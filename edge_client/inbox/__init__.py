"""Data that grow while a device runs: the samples of each round, and the time of the report to the coordinator.

May import: edge_client, edge_client.data, edge_client.data.inbox, edge_client.state, edge_client.trainer,
methods.contract, protocol.*.
"""
