"""What one step costs: kernels, memory, collectives, data loading."""
