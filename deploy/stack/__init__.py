"""The stack in containers: the content of its folder, and the calls of docker compose.

May import: coordinator, coordinator.observe, deploy.images, edge_client, federation.brokers,
federation.enrol, lab.local, lab.report, protocol.*, runtime.command.
"""
