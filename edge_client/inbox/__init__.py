"""Data that grow while a device runs: what each round learns from, and when the coordinator is told.

May import: edge_client, edge_client.data, edge_client.data.inbox, edge_client.state, edge_client.trainer,
methods.contract, protocol.*.
"""
