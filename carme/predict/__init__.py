"""Predictions on top of the simulator: coefficients fitted to measurements, intervals, advice.

Pure, except for `commands`: no I/O and no wall clock. The service and the commands bring workloads,
hardware and steps.
"""
