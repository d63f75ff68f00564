"""The parts of training that methods share: the local loop, optimizers, averages, prototypes, weights by name.

May import: methods.contract, methods.maths, methods.nets, protocol.settings.
"""
