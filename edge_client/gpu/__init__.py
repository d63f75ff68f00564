"""The admission of devices to a shared GPU, by the measured memory of their work.

May import: methods.contract.
"""
