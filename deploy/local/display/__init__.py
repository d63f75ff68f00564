"""What a run says while it goes: a display that fits the terminal, or a line a round.

May import: coordinator.observe, coordinator.round, protocol.*.
"""
