"""Formulas of the papers: tensors in, tensors out, no state. One module a theme.

May import: methods.contract.
"""
