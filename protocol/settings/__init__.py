"""TOML to frozen dataclasses, strictly, and how large and small the numbers in them may be.

May import: nothing of ours.
"""
