"""The admission of work to a shared GPU: a device may compute when enough GPU memory for its work is free.

May import: methods.contract.
"""
