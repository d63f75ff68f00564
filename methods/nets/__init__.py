"""Networks, and which there are by name. Torch alone.

May import: nothing of ours.
"""
