"""The hardware: GPUs, links, nodes, storage, and the power they draw."""
