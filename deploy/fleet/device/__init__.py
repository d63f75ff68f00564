"""What runs on a device during a deployment: it reports facts, verifies signatures, and has a systemd unit.

May import: deploy.fleet, edge_client.*, methods.contract, protocol.*.
"""
