"""The simulator's commands: simulate, pareto, timeline, reproduce, hardware, workloads, cluster."""
