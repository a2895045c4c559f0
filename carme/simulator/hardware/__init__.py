"""What it runs on: GPUs, links, nodes, and the power they draw."""
