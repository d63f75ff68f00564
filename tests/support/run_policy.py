"""A policy together with the number of rounds for which a test's run keeps it."""

from protofleet.lab.contract.worlds import RunPolicy

__all__ = ["RunPolicy"]
