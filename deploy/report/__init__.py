"""What has come of runs: a page, charts, tables, comparisons.

May import: deploy, deploy.local, coordinator.observe, protocol.*.
"""
