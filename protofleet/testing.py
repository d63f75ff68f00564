"""Tools for tests of your own method: `simulate` runs it in this process, as a federation would."""

from protofleet.lab.api.simulated import Simulated, SimulatedRound, simulate

__all__ = ["Simulated", "SimulatedRound", "simulate"]
