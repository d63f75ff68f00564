"""Checks before a start on this machine: no other process has the run, and its files are meant for it and load.

May import: deploy, methods.contract, methods.plugins, runtime, protocol.*.
"""
