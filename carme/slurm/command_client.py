"""Reading Slurm by its commands, in formats that no user's text can break."""

import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from carme.config import SlurmSettings
from carme.errors import InputError, UnavailableError
from carme.slurm import parse
from carme.slurm.command_runner import (
    SlurmCommandRunner,
    explain_refusal,
    first_line,
    output,
    read_failure,
    with_retry,
)
from carme.slurm.models import ExpectedStart, HistoryJob, Job, Node, Partition, Reservation
from carme.slurm.rights import Rights
from carme.units import format_slurm_time

log = logging.getLogger(__name__)
T = TypeVar("T")
# What sacctmgr prints where Slurm keeps no accounts.
_NO_ACCOUNTING = "not running a supported accounting_storage plugin"
# What squeue prints, in lower case, when it was built without JSON.
_NO_JSON = ("json plugin", "serializer", "openapi", "data_parser", "unrecognized option")


class CommandClient:
    """A SlurmClient that runs scontrol, squeue, sacct, sacctmgr and sbatch."""

    def __init__(
        self,
        run: SlurmCommandRunner,
        retry_seconds: float,
        now: Callable[[], float] = time.time,
        use_json: bool = True,
    ) -> None:
        self._run = run
        self._retry_seconds = retry_seconds
        self._now = now
        self._version = ""
        self._json = use_json

    @classmethod
    def of(cls, slurm: SlurmSettings) -> "CommandClient":
        """The client for this configuration."""
        return cls(SlurmCommandRunner.of(slurm), slurm.retry_seconds)

    def version(self) -> str:
        """The release of the commands, which Slurm keeps equal to the controller's."""
        if not self._version:
            text = output(self._run(["scontrol", "--version"]), "scontrol --version")
            self._version = parse.parse_version(text)
        return self._version

    def partitions(self) -> tuple[Partition, ...]:
        """`scontrol show partitions`: newer JSON does not say which is the default."""
        return parse.parse_partitions(self._show("partitions"))

    def nodes(self) -> tuple[Node, ...]:
        """`scontrol show nodes`, with the GPUs in use."""
        return parse.parse_nodes(self._show("nodes"))

    def reservations(self) -> tuple[Reservation, ...]:
        """`scontrol show reservations`."""
        return parse.parse_reservations(self._show("reservations"))

    def jobs(self) -> tuple[Job, ...]:
        """`squeue --json`, or its separated columns where Slurm was built without JSON."""
        return sorted_jobs(self._retried(self._read_jobs))

    def history(
        self, since: int, until: int | None = None, users: Sequence[str] = ()
    ) -> tuple[HistoryJob, ...]:
        """`sacct` with a separator that no job name can contain."""
        separator = _separator()
        argv = ["sacct", "--parsable2", f"--delimiter={separator}", f"--starttime={_iso(since)}"]
        argv += [f"--format={parse.SACCT_FORMAT}"]
        argv += [f"--user={','.join(users)}"] if users else ["--allusers"]
        argv += [f"--endtime={_iso(until)}"] if until else []
        return parse.parse_sacct(self._output("sacct", argv), separator)

    def expected_start(self, sbatch_options: Sequence[str]) -> ExpectedStart:
        """`sbatch --test-only`; InputError when Slurm would not take such a job."""
        return self._retried(lambda: self._read_expected_start(sbatch_options))

    def rights(self) -> Rights:
        """`sacctmgr show` associations, QoS and users; empty where Slurm has no accounting."""
        config = self._output("scontrol show config", ["scontrol", "show", "config"])
        cluster, enforced = parse.parse_accounting(config)
        try:
            associations = self._sacctmgr("associations", f"format={parse.ASSOCIATION_FORMAT}")
            qos = self._sacctmgr("qos")
            users = self._sacctmgr("users", "format=User,DefaultAccount")
        except InputError as error:
            if _NO_ACCOUNTING in error.message:
                return Rights()
            raise UnavailableError(error.message) from error
        return Rights(
            enforced=enforced,
            associations=parse.parse_associations(associations, cluster),
            qos=parse.parse_qos(qos),
            default_accounts=parse.parse_default_accounts(users),
        )

    def extend(self, job: Job, limit_seconds: int) -> None:
        """Give a job a new time limit; Slurm lets only operators raise one."""
        # The bare number of an array's first task would mean the whole array.
        target = job.id if job.array_task_id is None else job.label
        limit = format_slurm_time(limit_seconds)
        argv = ["scontrol", "update", f"JobId={target}", f"TimeLimit={limit}"]
        self._output("scontrol update", argv)

    def _sacctmgr(self, entities: str, *options: str) -> str:
        argv = ["sacctmgr", "--parsable2", "show", entities, *options]
        return self._output(f"sacctmgr show {entities}", argv)

    def _show(self, entities: str) -> str:
        argv = ["scontrol", "--oneliner", "--details", "--all", "show", entities]
        return self._output(f"scontrol show {entities}", argv)

    def _output(self, command: str, argv: Sequence[str]) -> str:
        return self._retried(lambda: output(self._run(argv), command))

    def _retried(self, call: Callable[[], T]) -> T:
        return with_retry(call, self._retry_seconds)

    def _read_jobs(self) -> tuple[Job, ...]:
        if self._json:
            # 22.05 prints all jobs as JSON anyway; later releases only those asked for.
            result = self._run(["squeue", "--all", "--states=all", "--json"])
            try:
                answer = json.loads(result.stdout)
                problem = parse.answer_errors(answer)
            except ValueError:
                problem = result.stderr or "its answer was cut short"
            if not problem:
                return parse.parse_json_jobs(answer)
            if not any(message in problem.lower() for message in _NO_JSON):
                raise read_failure(problem, "squeue --json")
            self._json = False
            log.info("squeue has no --json here (%s); reading columns", first_line(problem))
        separator = _separator()
        columns = ",".join(f"{field}:{separator}" for field in parse.SQUEUE_FIELDS)
        argv = ["squeue", "--all", "--states=all", "--noheader", f"--Format={columns}"]
        return parse.parse_squeue(output(self._run(argv), "squeue"), separator)

    def _read_expected_start(self, sbatch_options: Sequence[str]) -> ExpectedStart:
        result = self._run(["sbatch", "--test-only", *sbatch_options], "#!/bin/sh\n:\n")
        expected = parse.parse_test_only(result.stderr + result.stdout, self._now())
        if expected:
            return expected
        if not result.returncode:
            raise InputError("Slurm does not say when such a job would start")
        raise explain_refusal(result.stderr)


def sorted_jobs(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """`jobs` by id."""
    return tuple(sorted(jobs, key=lambda job: job.id))


def _separator() -> str:
    return f"@{secrets.token_hex(12)}@"


def _iso(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S")
