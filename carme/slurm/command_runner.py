"""Running Slurm's commands: a clean environment, and the typed errors for what they print."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from carme.config import SlurmSettings
from carme.errors import (
    CarmeError,
    ConfigError,
    DeniedError,
    InputError,
    MissingError,
    UnavailableError,
)
from carme.system.programs import STANDARD_PATH, CommandResult, execute

log = logging.getLogger(__name__)
T = TypeVar("T")

SAFE_PATH = f"{STANDARD_PATH}:/opt/slurm/bin"

# What Slurm's commands print, in lower case, while a daemon of Slurm or munge does not answer.
_AWAY = (
    "unable to contact slurm controller",
    "connection refused",
    "connect failure",
    "connection timed out",
    "socket timed out",
    "zero bytes were transmitted",
    "backup controller in standby",
    "in standby mode",
    "munge encode failed",
    "munge decode failed",
    "failed to access",
    "protocol authentication error",
    "unable to connect to database",
    "slurm_persist_conn_open",
    "sending persistinit msg",
    "connection reset by peer",
    "temporarily unable to accept job",
    "too many open files",
)
_NO_CONFIGURATION = ("configuration source", "resolve_ctls_from_dns", "process configuration file")
_UNKNOWN_JOB = ("invalid job id", "job/step already completing or completed")
_DENIED = ("access/permission denied", "access denied", "user's group not permitted")
# What sbatch prints, in lower case, and the error with message and hint for the user.
# fmt: off
_REFUSALS: tuple[tuple[str, type[CarmeError], str, str], ...] = (
    ("invalid account or account/partition", DeniedError,
     "your user name has no account in Slurm for this partition",
     "ask the administrators to add you (sacctmgr add user … account=…)"),
    ("invalid qos", DeniedError, "you may not use this quality of service (QoS)", ""),
    ("job violates accounting/qos policy", DeniedError,
     "this is more than your account or QoS allows: {detail}",
     "ask for less, or wait until other jobs of yours have ended"),
    ("requested time limit is invalid", InputError,
     "the time is longer than this partition allows", "ask for less time"),
    ("requested node configuration is not available", InputError,
     "no node of this partition has what you ask for", "ask for fewer GPUs, CPUs or less memory"),
    ("node count specification invalid", InputError, "there are not that many nodes", ""),
    ("more processors requested", InputError, "this partition does not have that many CPUs", ""),
    ("memory specification can not", InputError, "no node here has that much memory", ""),
    ("memory required by task is not", InputError, "no node here has that much memory", ""),
    ("invalid partition name", InputError, "there is no such partition", ""),
    ("invalid generic resource", InputError, "there are no such GPUs", ""),
    ("invalid feature", InputError, "no node has that feature", ""),
    ("group not permitted", DeniedError, "you may not use this partition", ""),
    ("access/permission denied", DeniedError, "Slurm does not take jobs from you there", ""),
    ("required partition not available", UnavailableError, "this partition is closed now", ""),
    ("reservation", DeniedError, "the reservation cannot be used: {detail}", ""),
)
# fmt: on


def clean_environment(slurm: SlurmSettings) -> dict[str, str]:
    """The environment of Slurm's commands, without inherited SLURM_* and SBATCH_* options."""
    environment = {
        "PATH": f"{slurm.bin}:{SAFE_PATH}" if slurm.bin else os.environ.get("PATH") or SAFE_PATH,
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",  # so that times without a zone mean one thing
    }
    if slurm.conf:
        environment["SLURM_CONF"] = str(slurm.conf)
    return environment


@dataclass(frozen=True)
class SlurmCommandRunner:
    """Runs commands with one environment and one time limit each."""

    timeout_seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, slurm: SlurmSettings) -> "SlurmCommandRunner":
        """Commands as the configuration has them."""
        # Slurm's commands themselves would wait a minute for the file to appear.
        if slurm.conf and not slurm.conf.exists():
            raise ConfigError(f"slurm.conf: there is no file {slurm.conf}", "check carme.toml")
        return cls(slurm.timeout_seconds, clean_environment(slurm))

    def __call__(self, argv: Sequence[str], stdin: str | None = None) -> CommandResult:
        """Run `argv`; MissingError without the program, UnavailableError past the time limit."""
        try:
            return execute(
                argv, stdin=stdin, env=self.environment, timeout_seconds=self.timeout_seconds
            )
        except MissingError as error:
            hint = "install Slurm's client commands or set slurm.bin in carme.toml"
            raise MissingError(error.message, hint) from None
        except UnavailableError as error:
            hint = "is slurmctld up? try scontrol ping"
            raise UnavailableError(error.message, hint) from None


def output(result: CommandResult, command: str) -> str:
    """The command's output; raises the typed error if it failed."""
    if result.returncode:
        raise failure(result.stderr or result.stdout, command)
    return result.stdout


def failure(printed: str, command: str) -> CarmeError:
    """The typed error for what a failing command printed."""
    text, line = printed.lower(), first_line(printed) or "it printed nothing"
    if any(message in text for message in _NO_CONFIGURATION):
        hint = "set slurm.conf in carme.toml to the path of slurm.conf"
        return ConfigError(f"Slurm's commands find no usable slurm.conf: {line}", hint)
    if any(message in text for message in _AWAY):
        return UnavailableError(f"Slurm does not answer: {line}", "is slurmctld up? scontrol ping")
    if any(message in text for message in _UNKNOWN_JOB):
        return MissingError("Slurm knows no such job")
    if any(message in text for message in _DENIED):
        return DeniedError(f"Slurm refused: {line}")
    return InputError(f"{command} failed: {line}")


def read_failure(printed: str, command: str) -> CarmeError:
    """The typed error for a read that failed: without a user's input it is Slurm's failure."""
    error = failure(printed, command)
    return UnavailableError(error.message) if isinstance(error, InputError) else error


def explain_refusal(printed: str) -> CarmeError:
    """The typed error for what a refusing sbatch printed."""
    error = failure(printed, "sbatch")
    if error.reason in ("unavailable", "config"):
        return error
    line = first_line(printed)
    for sign, error_class, message, hint in _REFUSALS:
        if sign in printed.lower():
            return error_class(message.format(detail=line[:300]), hint)
    return InputError(f"Slurm did not take the job: {line}")


def first_line(printed: str) -> str:
    """The first line that is not empty, without the command's name in front."""
    for line in printed.splitlines():
        message = line.strip()
        for prefix in ("sbatch: error: ", "sbatch: ", "scancel: error: ", "scontrol: error: "):
            message = message.removeprefix(prefix)
        if message:
            return message[:500]
    return ""


def with_retry(
    call: Callable[[], T],
    retry_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """The result of `call`; on UnavailableError tries again, with growing pauses."""
    started, pause = clock(), 0.25
    while True:
        try:
            return call()
        except UnavailableError as error:
            left = retry_seconds - (clock() - started)
            if left <= 0:
                raise
            log.info("Slurm is away, trying for %.0f s more: %s", left, error.message)
            sleep(min(pause, left))
            pause = min(pause * 2, 5)
