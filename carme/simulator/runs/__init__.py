"""Whole runs: from the cost of a step to time and energy."""
