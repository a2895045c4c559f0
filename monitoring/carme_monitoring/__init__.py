"""The exporter: measures GPU, power and network on a node and charges them to jobs."""
