"""The command line: one file for each group of sub-commands, and how mistakes are said.

May import: everything.
"""
