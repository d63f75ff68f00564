"""Files that survive a reboot: the half's state, the last answers, and the last messages of the coordinator.

May import: protocol.*.
"""
