"""Processes around a store, interleaved call by call with faults, and what must hold meanwhile; all from a seed."""

from simulation.run import CONTROLS, Result, simulate

__all__ = ["CONTROLS", "Result", "simulate"]
