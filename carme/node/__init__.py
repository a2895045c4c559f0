"""On a compute node: Slurm's hook, its record of GPU allocations, and the cgroups of jobs."""
