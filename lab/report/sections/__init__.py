"""The sections of a run's report, one file for each, and computations that only these sections use.

May import: coordinator.observe, lab.report, lab.report.drawing, protocol.link, protocol.settings,
protocol.wire.
"""
