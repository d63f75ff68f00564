"""The progress of a run: a live display in a terminal, or one line for each round.

May import: coordinator.observe, coordinator.round, protocol.link.
"""
