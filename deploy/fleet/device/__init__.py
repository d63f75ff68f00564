"""What runs on a host during a deployment: it reports facts, verifies signatures, and has a systemd unit.

May import: coordinator, coordinator.spool, deploy, deploy.fleet, edge_client.*, methods.contract, methods.plugins,
methods.served, protocol.*.
"""
