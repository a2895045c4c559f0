"""Reports on what a job requested, used and wasted, from Slurm's record and Prometheus' series.

`queries` and `report` are pure; `reporter` reads Slurm and Prometheus for a user.
"""
