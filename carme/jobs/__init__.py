"""What a job asked for, used and wasted: Slurm's record and Prometheus' series in one report.

`queries` and `report` are pure; `answers` asks on behalf of somebody, within what they may see.
"""
