"""The cost of one step: a GPU's shard, kernels, collectives, data loading, memory."""
