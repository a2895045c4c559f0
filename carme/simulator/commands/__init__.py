"""The simulator's commands: simulate, timeline, pareto, reproduce, validate, cluster."""
