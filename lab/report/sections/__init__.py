"""The sections of a run's report: a file for each, and what only they compute.

May import: coordinator.observe, lab.report, lab.report.drawing, protocol.link, protocol.settings.
"""
