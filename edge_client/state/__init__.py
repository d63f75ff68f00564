"""What survives a reboot: the half's state, the last answers, and what was heard from the coordinator.

May import: protocol.*.
"""
