"""Data that grow while a device runs: which samples a round uses, and when the coordinator learns of new samples.

May import: edge_client, edge_client.data, edge_client.data.inbox, edge_client.state, edge_client.trainer,
methods.contract, protocol.*.
"""
