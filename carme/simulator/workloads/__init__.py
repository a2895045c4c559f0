"""The workload: layers, transformers, measured steps, and the data set."""
