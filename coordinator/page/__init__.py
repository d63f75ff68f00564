"""The live page of a run: its state, its document, and its server. The page only shows, it makes no decisions.

May import: coordinator, coordinator.observe, coordinator.round, protocol.*, runtime.*.
"""
