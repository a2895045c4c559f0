"""Slurm's answers as models: text or JSON in, frozen models out, nothing read or run.

Format drift never raises: what is unknown is ignored, what is missing stays at its default.
"""

from carme.slurm.parse.accounting import SACCT_FIELDS, parse_sacct, parse_slurmdb_jobs
from carme.slurm.parse.commands import (
    parse_nodes,
    parse_partitions,
    parse_reservations,
    parse_test_only,
    parse_version,
)
from carme.slurm.parse.payload import (
    answer_errors,
    answer_version,
    parse_json_jobs,
    parse_json_nodes,
    parse_json_partitions,
    parse_json_reservations,
)
from carme.slurm.parse.rights import (
    ASSOCIATION_FIELDS,
    parse_accounting,
    parse_associations,
    parse_default_accounts,
    parse_qos,
)
from carme.slurm.parse.squeue import SQUEUE_FIELDS, parse_squeue

__all__ = [
    "ASSOCIATION_FIELDS",
    "SACCT_FIELDS",
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
