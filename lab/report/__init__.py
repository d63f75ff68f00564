"""Results of runs as a page, charts, tables and comparisons.

May import: coordinator.observe, lab.report.drawing, lab.report.sections, protocol.*, runtime.command.
"""
