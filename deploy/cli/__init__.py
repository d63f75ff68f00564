"""The command line: one file for each group of sub-commands, and the exit codes of mistakes.

May import: everything.
"""
