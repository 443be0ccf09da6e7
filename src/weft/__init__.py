"""Weft: pipeline schedules as programs, proved, simulated, drawn and executed."""

__version__ = "0.1.0"
