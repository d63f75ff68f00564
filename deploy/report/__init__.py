"""Results of runs: a page, charts, tables, comparisons.

May import: deploy, coordinator.observe, protocol.*.
"""
