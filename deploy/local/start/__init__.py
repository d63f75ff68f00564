"""What stands before a start on this machine: nobody else is at the run, and its files are meant for it and load.

May import: deploy, methods.contract, methods.plugins, runtime, protocol.*.
"""
