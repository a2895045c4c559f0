"""Charges what was read to the jobs of the node, and keeps the counters that grow by it.

Nothing here reads a device or a file of the kernel: the pipeline hands in what collectors read.
"""
