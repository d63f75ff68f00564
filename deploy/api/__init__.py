"""The API of `import protofleet`: runs, comparisons and models for scripts and notebooks, a simulation for tests.

May import: everything.
"""
