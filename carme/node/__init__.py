"""What runs on a compute node beside a job: Slurm's hook, GPU allocations, cgroups."""
