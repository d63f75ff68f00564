"""The files of a device that survive a reboot: its state, its last updates, and notes about received messages.

May import: protocol.*.
"""
