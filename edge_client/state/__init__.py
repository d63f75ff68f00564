"""Files that survive a reboot: the half's state, the last updates, and notes about the coordinator's messages.

May import: protocol.*.
"""
