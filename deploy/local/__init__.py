"""Runs on this machine: an experiment, its processes, their progress, many runs in turn, grids.

May import: everything.
"""
