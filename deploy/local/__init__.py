"""Runs on this machine: an experiment, its processes, their progress, sweeps of many runs.

May import: everything.
"""
