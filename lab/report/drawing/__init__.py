"""Charts as SVG, each in two widths and with a table of its numbers.

May import: lab.report.
"""
