"""The formulas of the papers, as functions from tensors to tensors, without state; one module for each topic.

May import: methods.contract.
"""
