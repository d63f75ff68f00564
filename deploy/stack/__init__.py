"""The stack in containers: what its folder holds, and docker compose.

May import: coordinator, coordinator.observe, deploy.images, edge_client, federation.brokers,
federation.enrol, lab.local, lab.report, protocol.*, runtime.command.
"""
