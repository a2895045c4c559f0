"""Slurm's answers as models: text or JSON in, frozen models out, no I/O.

Format drift never raises: unknown fields are ignored, missing ones stay at their default.
"""

from carme.slurm.parse.command_output import (
    ASSOCIATION_FORMAT,
    SACCT_FORMAT,
    parse_accounting,
    parse_associations,
    parse_default_accounts,
    parse_nodes,
    parse_partitions,
    parse_qos,
    parse_reservations,
    parse_sacct,
    parse_squeue,
    parse_test_only,
    parse_version,
)
from carme.slurm.parse.records import (
    SQUEUE_FIELDS,
    answer_errors,
    answer_version,
    parse_json_jobs,
    parse_json_nodes,
    parse_json_partitions,
    parse_json_reservations,
    parse_slurmdb_jobs,
)

__all__ = [
    "ASSOCIATION_FORMAT",
    "SACCT_FORMAT",
    "SQUEUE_FIELDS",
    "answer_errors",
    "answer_version",
    "parse_accounting",
    "parse_associations",
    "parse_default_accounts",
    "parse_json_jobs",
    "parse_json_nodes",
    "parse_json_partitions",
    "parse_json_reservations",
    "parse_nodes",
    "parse_partitions",
    "parse_qos",
    "parse_reservations",
    "parse_sacct",
    "parse_slurmdb_jobs",
    "parse_squeue",
    "parse_test_only",
    "parse_version",
]
