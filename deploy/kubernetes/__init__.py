"""A Helm chart for one federation, and the commands that an operator runs before and after its installation.

May import: deploy.stack, edge_client, edge_client.data, edge_client.host, federation.brokers, federation.enrol,
coordinator, coordinator.round, lab.local, methods.contract, protocol.*, runtime.*.
"""
