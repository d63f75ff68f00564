"""Measures of leakage with their intervals and controls, computed from arrays without any method or run.

May import: nothing of ours.
"""
