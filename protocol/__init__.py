"""The rules by which coordinator and devices communicate, from single bytes to whole conversations.

This package does not import torch.

May import: nothing of ours.
"""
