"""The systemd unit of a host, and the programs that report its state and verify signatures.

May import: coordinator, coordinator.spool, deploy.fleet, edge_client, edge_client.host, methods.plugins,
methods.served, protocol.*, runtime.command.
"""
