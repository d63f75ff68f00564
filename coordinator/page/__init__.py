"""The live page of a process: its runs, its queue, its document, and its server. The page makes no decisions.

May import: coordinator, coordinator.observe, coordinator.queue, coordinator.round, protocol.*, runtime.*.
"""
