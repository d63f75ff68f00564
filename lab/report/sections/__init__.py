"""The sections of a run's report, with a file for each section, and computations for the sections alone.

May import: coordinator.observe, lab.report, lab.report.drawing, protocol.link, protocol.settings.
"""
