"""Results of runs: a page, charts, tables, comparisons.

May import: deploy, deploy.report.*, coordinator.observe, protocol.*.
"""
