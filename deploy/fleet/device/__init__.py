"""Programs on a host during a deployment: they report facts and verify signatures; and the systemd unit.

May import: coordinator, coordinator.spool, deploy.fleet, edge_client, edge_client.host, methods.plugins,
methods.served, protocol.*, runtime.command.
"""
