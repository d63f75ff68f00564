"""The machine around a device: sensors, systemd, a status file, settings given and settings changed from afar.

May import: edge_client, protocol.*.
"""
