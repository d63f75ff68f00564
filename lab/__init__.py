"""Tools of a researcher: runs on this machine, reports, the Python API, exports, data sets and checks of methods.

May import: nothing of ours.
"""
