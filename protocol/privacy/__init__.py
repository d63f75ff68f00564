"""Differential privacy: the noise, its accountant, and the arithmetic that limits a vector. All parts are pure.

May import: nothing of ours.
"""
