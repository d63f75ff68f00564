"""Runs of an experiment in virtual time, on the boards and lines of a profiles file.

May import: coordinator.*, edge_client.*, lab.local, lab.report, lab.simulation, methods.*,
protocol.*, runtime.*.
"""
