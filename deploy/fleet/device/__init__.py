"""Programs on a host during a deployment: they report facts and verify signatures; and the systemd unit.

May import: coordinator, coordinator.spool, deploy, deploy.fleet, edge_client.*, methods.contract, methods.plugins,
methods.served, protocol.*.
"""
