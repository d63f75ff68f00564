"""Runs on this machine: an experiment, its processes, a sweep of them, what is seen meanwhile.

May import: everything.
"""
