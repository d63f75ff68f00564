"""Results of runs: a page, charts, tables, comparisons.

May import: coordinator.observe, lab.report.drawing, lab.report.sections, protocol.*, runtime.command.
"""
