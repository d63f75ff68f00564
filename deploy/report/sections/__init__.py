"""The sections of a run's report: a file for each, and what only they compute.

May import: deploy.report, deploy.report.drawing, coordinator.observe, protocol.*.
"""
