"""Experiments on this machine: their processes and progress, many runs in turn, and grids of settings.

May import: coordinator.*, edge_client.*, federation.*, lab.engines, lab.local.display, lab.report, lab.trackers,
methods.*, protocol.*, runtime.*.
"""
