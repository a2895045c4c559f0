"""The plan: how a workload is distributed over GPUs, and the schedules of its work."""
