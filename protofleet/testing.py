"""Tools for tests of your own method: `simulate` runs a federation with this method in this process."""

from protofleet.lab.api.simulated import Simulated, SimulatedRound, simulate

__all__ = ["Simulated", "SimulatedRound", "simulate"]
