"""Runs on this machine: an experiment, its processes, their progress, many runs in turn, grids.

May import: coordinator.*, edge_client.*, federation.brokers, federation.enrol, lab.local.display, lab.report,
lab.trackers, methods.*, protocol.*, runtime.*.
"""
