"""`carme-view`: the one process that polls Slurm, and its client."""
