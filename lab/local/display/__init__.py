"""Progress of a run: a display that fits the terminal, or one line for each round.

May import: coordinator.observe, coordinator.round, protocol.link.
"""
