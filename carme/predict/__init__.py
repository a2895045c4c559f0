"""Predictions on top of the simulator: coefficients fitted to measurements, intervals, advice.

Pure: no I/O and no wall clock. The service and the commands bring workloads, hardware and steps.
"""
