"""The command line: one file for each group of sub-commands.

May import: coordinator.*, deploy.*, edge_client.*, federation.*, lab.*, methods.*,
protocol.*, runtime.*.
"""
