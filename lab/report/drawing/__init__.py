"""Charts as SVG, in two widths, each with its numbers as a table.

May import: lab.report.
"""
