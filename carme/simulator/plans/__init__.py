"""How a workload is spread over GPUs."""
