"""Analyses of runs: timelines, scaling limits, Monte Carlo, suites."""
