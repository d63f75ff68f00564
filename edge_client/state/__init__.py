"""What survives a reboot: the half's state, the last answers, and what was heard of the coordinator.

May import: protocol.*.
"""
