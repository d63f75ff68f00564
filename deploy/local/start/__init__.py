"""What stands before a start on this machine: that nobody else is at the run, and that the file is meant for it.

May import: deploy, methods.contract, protocol.*.
"""
